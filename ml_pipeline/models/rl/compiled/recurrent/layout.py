"""The arguments of the compiled functions of recurrent networks, besides those of `compiled.layout`.

Parameters are in padded vectors. Sequences are cut at episode starts, and a step of all segments is computed together,
so that products have many rows. T steps, M sequences, B = T * M samples, D observation size, S state size, H units of
the memory, padded to LANES, G sums that depend on inputs, R rows of a group of sequences, P numbers in a padded vector,
C chunks of a minibatch.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple
from torch import nn

from ml_pipeline.models.rl.compiled import layout as perceptrons
from ml_pipeline.models.rl.compiled.layout import CODES, Layout, Networks, Placing, Workspace, up
from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE, Array, jit
from ml_pipeline.models.rl.networks.actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.mlp import activation_in


class Cell(NamedTuple):
    """The offsets of a cell's parameters in a vector of P numbers: weights of inputs, (D, G), and of the state, (H, G),
    then a bias for each, (G,); see `_placed_cell`.
    """

    of_inputs: int
    of_state: int
    input_bias: int
    state_bias: int


class Cells(NamedTuple):
    """One cell for each network. places: int64 (n, 4), the columns being `Cell`.

    A step computes 4 H sums, in slots of H. LSTM: i, f, o, g. GRU: n's input part, r, z, n's state part. Inputs go into
    the first n_sums, G = 4 H or 3 H of them, the state into the last. units: H without padding. inputs: D.
    biases: float32 (n, 4 H), sums of the two biases.
    """

    is_lstm: bool
    units: int
    padded_units: int
    inputs: int
    padded_inputs: int
    n_sums: int
    places: Array
    biases: Array


class Recurrent(NamedTuple):
    """networks: the MLPs, which take the hidden states of the cells as inputs."""

    networks: Networks
    cells: Cells


class RecurrentLearner(NamedTuple):
    """As in `compiled.layout`, and the cells below the networks."""

    networks: Networks
    ends: Array
    transposed: Array
    means: Array
    squares: Array
    gradients: Array
    cells: Cells


class SequenceArrays(NamedTuple):
    """length: T. observations: float32 (B, D), one step of all sequences after another. starts: bool (B,), True if an
    episode starts. state: float32 (M, S), before the first step: the hidden state of each network, for an LSTM followed
    by its cell state.
    """

    length: int
    observations: Array
    starts: Array
    state: Array


class RecurrentSamples(NamedTuple):
    """As in `compiled.layout`. In each of the orders, the samples of a sequence are consecutive."""

    actions: Array
    inputs: Array
    orders: Array
    sequences: SequenceArrays


class Packing(NamedTuple):
    """A group of sequences, cut at episode starts into segments, the longest first; their steps are rows.

    Rows first[t] to first[t + 1] are step t of all segments longer than t, in order: a segment has the same position in
    every step. samples: int64 (R,), of each row. first: int64 (T + 1,). origins: int64 (R,), for each segment, the
    sequence whose state it begins with, -1 for none. For sorting: places, int64 (T + 1,), of segments by length, and
    begins and lengths, int64 (R,), of segments in the order in which they were found.
    """

    samples: Array
    first: Array
    origins: Array
    places: Array
    begins: Array
    lengths: Array


class History(NamedTuple):
    """A cell's values in each row. x: float32 (R * padded D,). sums: float32 (R * 4 H,), then activations, then slopes
    by the sums. All others are float32 (R * H,): the hidden state and cell state before the step; the cell state after
    it, and its tanh; the hidden state; slopes by the hidden state; and slopes by the cell state, per segment.
    """

    x: Array
    sums: Array
    before: Array
    carried_before: Array
    carried: Array
    squashed: Array
    hidden: Array
    slopes: Array
    back: Array


class SequenceGroup(NamedTuple):
    """A group of sequences that goes through the networks together. longest: the steps of its longest segment."""

    sequences: SequenceArrays
    packing: Packing
    history: History
    longest: int


class Outputs(NamedTuple):
    """parameters: float32 (B, A), of the distribution. values: float32 (B,), or none at all. states: float32 (B, S),
    after each step.
    """

    parameters: Array
    values: Array
    states: Array


class RecurrentWorkspace(NamedTuple):
    """Memory of one thread, for a group. bias_slopes: float32 (4 H,)."""

    heads: Workspace
    packing: Packing
    history: History
    bias_slopes: Array


@jit
def cell_of(cells: Cells, n: int) -> Cell:
    """The cell of network n."""
    return Cell(*to_fixed_tuple(cells.places[n], 4))  # type: ignore[call-arg]  # numba adds the first


_LSTM_SLOTS: tuple[int, ...] = (0, 1, 3, 2)
"""Slots of torch's i, f, g and o."""
_GRU_INPUT_SLOTS: tuple[int, ...] = (1, 2, 0)
_GRU_STATE_SLOTS: tuple[int, ...] = (0, 1, 2)
"""Slots of torch's r, z and n, among the sums of the inputs, and among those of the state."""


class RecurrentLayout(NamedTuple):
    """heads: the layout of the perceptrons above the cells; its vectors hold all parameters, those of the cells too.
    cells: contain buffers for biases, so two threads must not share a layout.
    """

    heads: Layout
    cells: Cells


def layout_of(network: GeneralActorCritic) -> RecurrentLayout:
    """The layout of one or two cells, each with a perceptron on top; if layers are shared, the last outputs the value
    after the distribution's parameters.
    """
    placed, ends, cells = Placing(), [0], []
    towers: list[Any] = list(network.towers)
    heads: list[Any] = [network.actor_head[-1], network.critic_head[-1]]
    cell: nn.LSTMCell | nn.GRUCell = towers[0].memory.cell
    padded_units = up(cell.hidden_size, LANES)
    for n, tower in enumerate(towers):
        cells.append(_placed_cell(tower.memory.cell, placed))
        hidden = [[layer] for layer in tower.hidden if isinstance(layer, nn.Linear)]
        last = heads if len(towers) == 1 else [heads[n]]
        placed.layers([*hidden, last], padded_inputs=padded_units)
        if n == 0:
            log_std = placed.vectors(network.distribution.parameters())
        ends.append(placed.end)
    is_lstm = isinstance(cell, nn.LSTMCell)
    return RecurrentLayout(
        Layout(
            layers=placed.rows(),
            log_std=log_std,
            activation=CODES[activation_in(towers[0].hidden)],
            ends=np.array(ends),
            size=placed.end,
            places=placed.of(network.parameter_order()),
        ),
        Cells(
            is_lstm=is_lstm,
            units=cell.hidden_size,
            padded_units=padded_units,
            inputs=cell.input_size,
            padded_inputs=up(cell.input_size, ROWS),
            n_sums=(4 if is_lstm else 3) * padded_units,
            places=np.array(cells, dtype=np.int64),
            biases=np.zeros((len(towers), 4 * padded_units), np.float32),
        ),
    )


def new_workspace(layout: RecurrentLayout, *, length: int, n_sequences: int) -> RecurrentWorkspace:
    """The workspace of one thread, for n_sequences of this length."""
    cells, heads = layout.cells, perceptrons.new_workspace(layout.heads)
    n_rows = sequences_of_group(length, n_sequences) * length
    n_padded = up(n_rows, TILE)

    def numbers(columns: int) -> Array:
        return np.zeros(n_padded * columns, np.float32)

    h = cells.padded_units
    return RecurrentWorkspace(
        heads._replace(zeros=np.zeros(max(h, len(heads.zeros)), np.float32)),
        Packing(
            samples=np.zeros(n_rows, np.int64),
            first=np.zeros(length + 1, np.int64),
            origins=np.zeros(n_rows, np.int64),
            places=np.zeros(length + 1, np.int64),
            begins=np.zeros(n_rows, np.int64),
            lengths=np.zeros(n_rows, np.int64),
        ),
        History(numbers(cells.padded_inputs), numbers(4 * h), *(numbers(h) for _ in range(7))),
        bias_slopes=np.zeros(4 * h, np.float32),
    )


def _placed_cell(cell: nn.LSTMCell | nn.GRUCell, placed: Placing) -> Cell:
    units, h = cell.hidden_size, up(cell.hidden_size, LANES)
    is_lstm = isinstance(cell, nn.LSTMCell)
    input_slots, state_slots = (_LSTM_SLOTS,) * 2 if is_lstm else (_GRU_INPUT_SLOTS, _GRU_STATE_SLOTS)
    n_sums = len(input_slots) * h
    input_columns, state_columns = (
        (h * np.array(slots)[:, None] + np.arange(units)).ravel() for slots in (input_slots, state_slots)
    )
    of_inputs = placed.end
    of_state = of_inputs + up(cell.input_size, ROWS) * n_sums
    input_bias = of_state + h * n_sums
    state_bias = input_bias + n_sums
    placed.put(cell.weight_ih, of_inputs + input_columns[:, None] + n_sums * np.arange(cell.input_size))
    placed.put(cell.weight_hh, of_state + state_columns[:, None] + n_sums * np.arange(units))
    placed.put(cell.bias_ih, input_bias + input_columns)
    placed.put(cell.bias_hh, state_bias + state_columns)
    placed.end = state_bias + n_sums
    return Cell(of_inputs, of_state, input_bias, state_bias)


GROUP = 1024
"""Rows that go through the networks together, few enough for a core's cache; see `sequences_of_group`."""


def sequences_of_group(length: int, n_sequences: int) -> int:
    """The number of sequences per group, out of n_sequences of this length: at least four, since one alone is slow."""
    return min(max(GROUP // length, 4), n_sequences)


@jit
def pack(chosen: Array, sequences: SequenceArrays, packing: Packing) -> int:
    """Fills packing for these samples, int64 (R,), sequence by sequence; returns the length of the longest segment."""
    length, starts = sequences.length, sequences.starts
    first, places, begins, lengths = packing.first, packing.places, packing.begins, packing.lengths
    n_segments = 0
    places[:] = 0
    for k in range(len(chosen)):
        if k % length == 0 or starts[chosen[k]]:
            begins[n_segments], lengths[n_segments] = k, 0
            n_segments += 1
        lengths[n_segments - 1] += 1
    for s in range(n_segments):
        places[lengths[s]] += 1
    # Turn the number of segments of each length into the number of longer ones, the place of the first of that length.
    longer = 0
    for t in range(length, -1, -1):
        longer, places[t] = longer + places[t], longer
    first[0] = longest = 0
    while longest < length and places[longest]:
        first[longest + 1] = first[longest] + places[longest]
        longest += 1
    for s in range(n_segments):
        place, begin = places[lengths[s]], begins[s]
        places[lengths[s]] += 1
        # The first sample of a sequence has the sequence's number.
        packing.origins[place] = chosen[begin] if begin % length == 0 and not starts[chosen[begin]] else -1
        for t in range(lengths[s]):
            packing.samples[first[t] + place] = chosen[begin + t]
    return longest
