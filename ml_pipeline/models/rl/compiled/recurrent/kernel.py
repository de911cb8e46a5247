"""A whole update of a policy with a GRU or LSTM, compiled, and running its networks over sequences.

Needs numba (extra `fast`); only `compiled_memory` and `compiled_steps` import it. The mathematics is that of
`GeneralActorCritic.over_sequences` and autograd's, with which the tests compare it. As in `compiled.kernel`, the number
of threads changes no bit, and those of a row do not depend on what other rows there are, nor on how many.
"""

from pathlib import Path
from typing import Any

from ml_pipeline.models.rl.compiled.layout import Activations, Workspace, last_layer, layer_of
from ml_pipeline.models.rl.compiled.losses import Part, policy_slopes, value_slopes
from ml_pipeline.models.rl.compiled.machine import TILE, Array, Matrix, jit, jit_entry
from ml_pipeline.models.rl.compiled.minibatch_steps import steps_by
from ml_pipeline.models.rl.compiled.perceptron import (
    backward,
    backward_to_inputs,
    forward,
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
    Rows,
    SequenceArrays,
    cell_of,
    pack,
)
from ml_pipeline.models.rl.compiled.recurrent.unrolling import add_biases, run, run_back
from ml_pipeline.runtime.code_cache import keep_code


def _kept(function: Any) -> Any:
    """Compiled once for all processes, and again after a file of this folder or of the one above has changed."""
    return keep_code(jit_entry(function), made_of=sorted(Path(__file__).parent.parent.rglob("*.py")))


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

    One function, since what calls another is optimized again with all of it, for two seconds more.
    """
    networks, cells, packing, history = learner.networks, learner.cells, workspace.packing, workspace.history
    chunk.gradient[learner.ends[n] : learner.ends[n + 1]] = 0.0
    heads, h, size = workspace.heads, cells.padded_units, len(packing.samples)
    kl = 0.0
    for start in range(0, len(chunk.chosen), size):
        chosen = chunk.chosen[start : start + size]
        group = Rows(samples.sequences, packing, history, pack(chosen, samples.sequences, packing))
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


update = _kept(steps_by(_prepare, _gradient))
"""The units are the networks."""


@_kept
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
        group = Rows(sequences, packing, history, pack(chosen, sequences, packing))
        for n in range(n_networks):
            run(n, network, group)
            _write_states(n, len(chosen), cells, group, outputs.states)
            if n == 0 or len(outputs.values) > 0:
                _write_outputs(n, len(chosen), network, workspace, outputs)


@jit
def _write_states(n: int, n_rows: int, cells: Cells, rows: Rows, states: Array) -> None:
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
