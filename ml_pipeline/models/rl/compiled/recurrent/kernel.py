"""A whole update of a policy with a GRU or LSTM, compiled, and the evaluation of its networks over sequences.

D observation size, H units, both padded; G sums that depend on inputs, R rows of a group of sequences. A cell's step
for one row equals that of torch's cells; its arguments are separate float32 (H,) arrays, except `sums`, (4 H,). Each
loop touches few arrays: only then does the compiler check that they do not overlap, and use vectors.
Source: Hochreiter and Schmidhuber 1997, Long Short-Term Memory, with forget gates; Cho et al. 2014, arXiv:1406.1078.

Needs numba (extra `fast`); only `compiled_networks` and `compiled_steps` import it. The formulas are those of
`GeneralActorCritic.over_sequences` and autograd, and the tests compare the results. As in `compiled.kernel`, the number
of threads changes no bit, and the bits of a row do not depend on other rows or their number.
"""

from ml_pipeline.models.rl.compiled.kernel import kept, steps_by
from ml_pipeline.models.rl.compiled.layout import TANH, Activations, Networks, Workspace, last_layer, layer_of
from ml_pipeline.models.rl.compiled.losses import Part, policy_slopes, value_slopes
from ml_pipeline.models.rl.compiled.machine import TILE, Array, Matrix, f32, jit, product, product_of_any
from ml_pipeline.models.rl.compiled.perceptron import (
    activate,
    add,
    backward,
    backward_to_inputs,
    copy,
    forward,
    sigmoid,
    tanh,
    transpose_from,
    transpose_part,
    whole_blocks,
)
from ml_pipeline.models.rl.compiled.recurrent.layout import (
    Cells,
    Outputs,
    Recurrent,
    RecurrentLearner,
    RecurrentSamples,
    RecurrentWorkspace,
    SequenceArrays,
    SequenceGroup,
    cell_of,
    pack,
)


@jit
def _prepare(n: int, learner: RecurrentLearner) -> None:
    cells = learner.cells
    transpose_from(0, n, learner)
    transpose_part(cell_of(cells, n).of_state, cells.padded_units, cells.n_sums, learner)
    add_biases(n, learner.networks, cells)


@jit
def _gradient(
    n: int, chunk: Part, learner: RecurrentLearner, samples: RecurrentSamples, workspace: RecurrentWorkspace
) -> float:
    """Fills the chunk's gradient by network n, and its rows, group by group; returns the sum of its KL, if n is 0.

    One function, since a second one would be optimized again with its caller, which takes two seconds more.
    """
    networks, cells, packing, history = learner.networks, learner.cells, workspace.packing, workspace.history
    chunk.gradient[learner.ends[n] : learner.ends[n + 1]] = 0.0
    heads, h, size = workspace.heads, cells.padded_units, len(packing.samples)
    kl = 0.0
    for start in range(0, len(chunk.chosen), size):
        chosen = chunk.chosen[start : start + size]
        group = SequenceGroup(samples.sequences, packing, history, pack(chosen, samples.sequences, packing))
        run(n, Recurrent(networks, cells), group)
        for tile in range(0, len(chosen), TILE):
            rows = packing.samples[tile : min(tile + TILE, len(chosen))]
            n_rows = whole_blocks(len(rows))
            activations = Activations(history.hidden[tile * h :], heads.activations.outputs, heads.activations.sums)
            own = Workspace(activations, heads.slopes, heads.zeros, heads.row)
            part = Part(chunk.minibatch, rows, chunk.rows[:, start + tile :], chunk.gradient)
            forward(n, n_rows, networks, activations)
            if n == 0:
                kl += policy_slopes(part, samples.actions, samples.inputs, networks, own)
            if n == len(cells.places) - 1:
                value_slopes(part, samples.inputs, networks, own)
            backward(n, n_rows, learner, part.gradient, own)
            backward_to_inputs(n, n_rows, learner, own, Matrix(history.slopes, tile * h, h, 1))
        run_back(n, learner, group, chunk.gradient, workspace.bias_slopes)
    return kl


update = kept(steps_by(_prepare, _gradient))
"""Each network is one unit."""


@kept
def evaluate(
    network: Recurrent, sequences: SequenceArrays, order: Array, workspace: RecurrentWorkspace, outputs: Outputs
) -> None:
    """Fills outputs. order: int64 (B,), all samples, sequence by sequence."""
    networks, cells, packing, history = network.networks, network.cells, workspace.packing, workspace.history
    n_networks, size = len(cells.places), len(packing.samples)
    for n in range(n_networks):
        add_biases(n, networks, cells)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        group = SequenceGroup(sequences, packing, history, pack(chosen, sequences, packing))
        for n in range(n_networks):
            run(n, network, group)
            _write_states(n, len(chosen), cells, group, outputs.states)
            if n == 0 or len(outputs.values) > 0:
                _write_outputs(n, len(chosen), network, workspace, outputs)


@jit
def _write_states(n: int, n_rows: int, cells: Cells, rows: SequenceGroup, states: Array) -> None:
    h, units, history = cells.padded_units, cells.units, rows.history
    place = n * states.shape[1] // len(cells.places)
    for r in range(n_rows):
        state = states[rows.packing.samples[r]]
        for j in range(units):
            state[place + j] = history.hidden[r * h + j]
            if cells.is_lstm:
                state[place + units + j] = history.carried[r * h + j]


@jit
def _write_outputs(n: int, n_rows: int, network: Recurrent, workspace: RecurrentWorkspace, outputs: Outputs) -> None:
    networks, cells, heads = network.networks, network.cells, workspace.heads
    last, h = last_layer(networks, n), cells.padded_units
    layer = layer_of(networks, n, last)
    gives_values = n == len(cells.places) - 1 and len(outputs.values) > 0
    for tile in range(0, n_rows, TILE):
        samples = workspace.packing.samples[tile : min(tile + TILE, n_rows)]
        activations = Activations(
            workspace.history.hidden[tile * h :], heads.activations.outputs, heads.activations.sums
        )
        forward(n, whole_blocks(len(samples)), networks, activations)
        found = activations.outputs[n, last].reshape(-1, layer.width)
        for s in range(len(samples)):
            if n == 0:
                for a in range(outputs.parameters.shape[1]):
                    outputs.parameters[samples[s], a] = found[s, a]
            if gives_values:
                outputs.values[samples[s]] = found[s, layer.outputs - 1]


_AT_ONCE = 128  # rows whose products go into a sum, few enough for the L1 cache


@jit
def add_biases(n: int, networks: Networks, cells: Cells) -> None:
    """Fills cells.biases[n], the sums of the two biases."""
    cell, n_sums = cell_of(cells, n), cells.n_sums
    biases, parameters = cells.biases[n], networks.parameters
    biases[:] = 0.0
    add(biases[:n_sums], parameters[cell.input_bias : cell.input_bias + n_sums])
    add(biases[len(biases) - n_sums :], parameters[cell.state_bias : cell.state_bias + n_sums])


@jit
def run(n: int, network: Recurrent, rows: SequenceGroup) -> None:
    """Fills the history of network n with that of the rows."""
    cells, packing, history, longest = network.cells, rows.packing, rows.history, rows.longest
    cell, h, n_sums = cell_of(cells, n), cells.padded_units, cells.n_sums
    width, n_rows = 4 * h, packing.first[longest]
    sums = history.sums
    _read_inputs(n_rows, cells, rows)
    product(
        Matrix(sums, 0, width, 1),
        Matrix(cells.biases, n * width, 0, 1),
        Matrix(history.x, 0, cells.padded_inputs, 1),
        Matrix(network.networks.parameters, cell.of_inputs, n_sums, 1),
        (whole_blocks(n_rows), n_sums, cells.inputs),
    )
    if n_sums < width:  # the sums that do not depend on inputs
        for r in range(n_rows):
            copy(cells.biases[n, n_sums:], sums[r * width + n_sums :])
    for t in range(longest):
        begin, end = packing.first[t], packing.first[t + 1]
        if t == 0:
            _read_states(n, end, cells, rows)
        else:
            first = packing.first[t - 1]
            before = slice(first * h, (first + end - begin) * h)
            copy(history.hidden[before], history.before[begin * h :])
            copy(history.carried[before], history.carried_before[begin * h :])
        by_state = Matrix(sums, begin * width + width - n_sums, width, 1)
        product_of_any(
            by_state,
            by_state,
            Matrix(history.before, begin * h, h, 1),
            Matrix(network.networks.parameters, cell.of_state, n_sums, 1),
            (end - begin, n_sums, cells.units),
        )
        for r in range(begin, end):
            own, units = slice(r * width, (r + 1) * width), slice(r * h, (r + 1) * h)
            if cells.is_lstm:
                lstm(
                    sums[own],
                    history.carried_before[units],
                    history.carried[units],
                    history.squashed[units],
                    history.hidden[units],
                )
            else:
                gru(sums[own], history.before[units], history.hidden[units])


@jit
def run_back(n: int, learner: RecurrentLearner, rows: SequenceGroup, gradient: Array, bias_slopes: Array) -> None:
    """Adds to gradient, float32 (P,), from history.slopes; replaces these and history.sums by other slopes.

    bias_slopes: float32 (4 H,), is overwritten.
    """
    cells, packing, history, longest = learner.cells, rows.packing, rows.history, rows.longest
    cell, h, n_sums = cell_of(cells, n), cells.padded_units, cells.n_sums
    width, n_rows = 4 * h, packing.first[longest]
    sums, slopes, after = history.sums, history.slopes, 0
    history.back[: packing.first[1] * h] = 0.0
    for t in range(longest - 1, -1, -1):
        begin, end = packing.first[t], packing.first[t + 1]
        if after:
            by_state = Matrix(slopes, begin * h, h, 1)
            product_of_any(
                by_state,
                by_state,
                Matrix(sums, end * width + width - n_sums, width, 1),
                Matrix(learner.transposed, cell.of_state, h, 1),
                (after, h, n_sums),
            )
        for r in range(begin, end):
            own, units, of_segment = slice(r * width, (r + 1) * width), slice(r * h, (r + 1) * h), (r - begin) * h
            back = history.back[of_segment : of_segment + h]
            if cells.is_lstm:
                lstm_backward(sums[own], history.carried_before[units], history.squashed[units], slopes[units], back)
            else:
                gru_backward(sums[own], history.before[units], slopes[units], back)
        after = end - begin
    bias_slopes[:] = 0.0
    for r in range(n_rows):
        add(bias_slopes, sums[r * width : (r + 1) * width])
    add(gradient[cell.input_bias : cell.input_bias + n_sums], bias_slopes[:n_sums])
    add(gradient[cell.state_bias : cell.state_bias + n_sums], bias_slopes[width - n_sums :])
    for r in range(0, n_rows, _AT_ONCE):
        n_some = min(_AT_ONCE, n_rows - r)
        of_inputs, of_state = Matrix(gradient, cell.of_inputs, n_sums, 1), Matrix(gradient, cell.of_state, n_sums, 1)
        inputs = Matrix(history.x, r * cells.padded_inputs, 1, cells.padded_inputs)
        by_inputs = Matrix(sums, r * width, width, 1)
        product(of_inputs, of_inputs, inputs, by_inputs, (cells.padded_inputs, n_sums, n_some))
        states, by_state = Matrix(history.before, r * h, 1, h), Matrix(sums, r * width + width - n_sums, width, 1)
        product(of_state, of_state, states, by_state, (h, n_sums, n_some))


@jit
def _read_inputs(n_rows: int, cells: Cells, rows: SequenceGroup) -> None:
    x = rows.history.x[: n_rows * cells.padded_inputs].reshape(n_rows, cells.padded_inputs)
    for r in range(n_rows):
        for k in range(cells.inputs):
            x[r, k] = rows.sequences.observations[rows.packing.samples[r], k]


@jit
def _read_states(n: int, n_segments: int, cells: Cells, rows: SequenceGroup) -> None:
    """Fills the initial states of the first rows, one for each segment."""
    h, units, history, states = cells.padded_units, cells.units, rows.history, rows.sequences.state
    place = n * states.shape[1] // len(cells.places)
    for s in range(n_segments):
        origin = rows.packing.origins[s]
        for j in range(units):
            history.before[s * h + j] = states[origin, place + j] if origin >= 0 else 0.0
            if cells.is_lstm:
                history.carried_before[s * h + j] = states[origin, place + units + j] if origin >= 0 else 0.0


@jit
def lstm(sums: Array, carried_before: Array, carried: Array, squashed: Array, hidden: Array) -> None:
    """Replaces the sums of i, f, o and g by activations, and fills all other arrays but carried_before."""
    h = len(hidden)
    i, f, o, g = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    _sigmoids(sums[: 3 * h])
    activate(g, TANH)
    for j in range(h):
        carried[j] = f[j] * carried_before[j] + i[j] * g[j]
    for j in range(h):
        squashed[j] = tanh(carried[j])
    for j in range(h):
        hidden[j] = o[j] * squashed[j]


@jit
def lstm_backward(sums: Array, carried_before: Array, squashed: Array, slopes: Array, back: Array) -> None:
    """Replaces the activations by slopes by the sums, and `back`, slopes by the carried state, by slopes by
    carried_before. slopes: by the hidden state.
    """
    h = len(slopes)
    i, f, o, g = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    for j in range(h):
        back[j] += slopes[j] * o[j] * (f32(1.0) - squashed[j] * squashed[j])
    for j in range(h):
        o[j] = slopes[j] * squashed[j] * o[j] * (f32(1.0) - o[j])
    for j in range(h):
        was = i[j]
        i[j] = back[j] * g[j] * was * (f32(1.0) - was)
        g[j] = back[j] * was * (f32(1.0) - g[j] * g[j])
    for j in range(h):
        was = f[j]
        f[j] = back[j] * carried_before[j] * was * (f32(1.0) - was)
        back[j] *= was


@jit
def gru(sums: Array, before: Array, hidden: Array) -> None:
    """Replaces the sums of n's input part, r and z by activations, and fills hidden; n's state part is last."""
    h = len(hidden)
    n, r, z, of_state = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    _sigmoids(sums[h : 3 * h])
    for j in range(h):
        n[j] += r[j] * of_state[j]
    activate(n, TANH)
    for j in range(h):
        hidden[j] = n[j] + z[j] * (before[j] - n[j])


@jit
def gru_backward(sums: Array, before: Array, slopes: Array, back: Array) -> None:
    """Replaces the activations by slopes by the sums, and `back` by the part of the slopes by `before` that does not go
    through the sums. slopes: by the hidden state; `back` is added to them.
    """
    h = len(slopes)
    n, r, z, of_state = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    for j in range(h):
        slopes[j] += back[j]
    for j in range(h):
        back[j] = slopes[j] * z[j]
    for j in range(h):
        was = z[j]
        z[j] = slopes[j] * (before[j] - n[j]) * was * (f32(1.0) - was)
        n[j] = slopes[j] * (f32(1.0) - was) * (f32(1.0) - n[j] * n[j])
    for j in range(h):
        was = r[j]
        r[j] = n[j] * of_state[j] * was * (f32(1.0) - was)
        of_state[j] = n[j] * was


@jit
def _sigmoids(x: Array) -> None:
    """In place; float32 (n,)."""
    for i in range(len(x)):
        x[i] = sigmoid(x[i])
