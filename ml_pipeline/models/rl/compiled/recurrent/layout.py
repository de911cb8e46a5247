"""The places of a recurrent network's parameters in the padded vectors of `recurrent.kernel`, and what it works in.

D observation size, T steps, M sequences, H units, G sums that inputs reach; see `Cells`.
"""

from typing import Any, NamedTuple

import numpy as np
from torch import nn

from ml_pipeline.models.rl.compiled import layout as perceptrons
from ml_pipeline.models.rl.compiled.activations import CODES
from ml_pipeline.models.rl.compiled.layout import Layout, Placing, up
from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE
from ml_pipeline.models.rl.compiled.recurrent.arguments import Cell, Cells, History, Packing, RecurrentWorkspace
from ml_pipeline.models.rl.compiled.recurrent.packing import sequences_of_group
from ml_pipeline.models.rl.networks.activations import activation_in
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic

Array = np.ndarray

_LSTM_SLOTS: tuple[int, ...] = (0, 1, 3, 2)
"""Of torch's i, f, g and o."""
_GRU_INPUT_SLOTS: tuple[int, ...] = (1, 2, 0)
_GRU_STATE_SLOTS: tuple[int, ...] = (0, 1, 2)
"""Of torch's r, z and n, among the slots that inputs reach, and among those that the state reaches."""


class RecurrentLayout(NamedTuple):
    """heads: of the perceptrons on top of the cells, and of all parameters. cells: their biases are this layout's own,
    so that who works with it at the same time needs one of its own.
    """

    heads: Layout
    cells: Cells


def layout_of(network: GeneralActorCritic) -> RecurrentLayout:
    """The layout of one or two cells, each with a perceptron on top; where layers are shared, the last has the value
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
    """For one thread, and sequences of this length, of which there are as many."""
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
