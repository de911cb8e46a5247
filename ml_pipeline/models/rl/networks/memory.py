"""The memory of a recurrent policy. T steps, M sequences, S state size.

A sequence is consecutive steps of one environment; the state is reset where an episode starts in it.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

MemoryKind = Literal["gru", "lstm"]


class Sequences(NamedTuple):
    """starts: bool (T, M), where an episode starts. state: float32 (M, S), before the first step."""

    starts: Tensor
    state: Tensor


class Memory(nn.Module):
    """A GRU or LSTM cell, run over sequences. Its state is (M, S), for an LSTM both parts side by side."""

    def __init__(self, input_size: int, size: int, *, kind: MemoryKind, generator: torch.Generator) -> None:
        super().__init__()
        self.state_size = size * (2 if kind == "lstm" else 1)
        self.cell = nn.LSTMCell(input_size, size) if kind == "lstm" else nn.GRUCell(input_size, size)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, 1.0, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Float (T, M, inputs) to outputs (T, M, size) and the states after each step, (T, M, S)."""
        outputs, states, state = [], [], sequences.state
        for step_inputs, starts in zip(inputs, sequences.starts, strict=True):
            # By where(), not by a product: no gradient reaches back over the start of an episode.
            state = torch.where(starts[:, None], torch.zeros_like(state), state)
            if isinstance(self.cell, nn.LSTMCell):
                hidden, carried = self.cell(step_inputs, state.chunk(2, dim=1))
                state = torch.cat([hidden, carried], dim=1)
            else:
                hidden = state = self.cell(step_inputs, state)
            outputs.append(hidden)
            states.append(state)
        return torch.stack(outputs), torch.stack(states)
