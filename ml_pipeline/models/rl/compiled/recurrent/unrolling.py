"""A cell run over the rows of a group of sequences: forward, and backward through time.

D observation size, H units, both padded; G sums that inputs reach, R rows.
"""

from ml_pipeline.models.rl.compiled.arguments import Networks
from ml_pipeline.models.rl.compiled.machine import Array, jit
from ml_pipeline.models.rl.compiled.perceptron import add, copy, whole_blocks
from ml_pipeline.models.rl.compiled.products import Matrix, product, product_of_any
from ml_pipeline.models.rl.compiled.recurrent.arguments import Cells, Learner, Recurrent, Rows, cell_of
from ml_pipeline.models.rl.compiled.recurrent.cells import gru, gru_backward, lstm, lstm_backward

_AT_ONCE = 128  # rows whose products go into a sum, few enough for the cache nearest to a core


@jit
def add_biases(n: int, networks: Networks, cells: Cells) -> None:
    """Fills cells.biases[n], the sums of the two biases."""
    cell, n_sums = cell_of(cells, n), cells.n_sums
    biases, parameters = cells.biases[n], networks.parameters
    biases[:] = 0.0
    add(biases[:n_sums], parameters[cell.input_bias : cell.input_bias + n_sums])
    add(biases[len(biases) - n_sums :], parameters[cell.state_bias : cell.state_bias + n_sums])


@jit
def run(n: int, network: Recurrent, rows: Rows) -> None:
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
    if n_sums < width:  # the sums that inputs do not reach
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
def run_back(n: int, learner: Learner, rows: Rows, gradient: Array, bias_slopes: Array) -> None:
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
def _read_inputs(n_rows: int, cells: Cells, rows: Rows) -> None:
    x = rows.history.x[: n_rows * cells.padded_inputs].reshape(n_rows, cells.padded_inputs)
    for r in range(n_rows):
        for k in range(cells.inputs):
            x[r, k] = rows.sequences.observations[rows.packing.samples[r], k]


@jit
def _read_states(n: int, n_segments: int, cells: Cells, rows: Rows) -> None:
    """What the first rows, one for each segment, begin with."""
    h, units, history, states = cells.padded_units, cells.units, rows.history, rows.sequences.state
    place = n * states.shape[1] // len(cells.places)
    for s in range(n_segments):
        origin = rows.packing.origins[s]
        for j in range(units):
            history.before[s * h + j] = states[origin, place + j] if origin >= 0 else 0.0
            if cells.is_lstm:
                history.carried_before[s * h + j] = states[origin, place + units + j] if origin >= 0 else 0.0
