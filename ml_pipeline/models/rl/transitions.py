"""The data that collecting hands to learning: a batch of transitions, and its parts.

B samples, D observation size; T steps, M sequences, S state size. A sequence is consecutive steps of one environment.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TrainingFailed(RuntimeError):
    """Training cannot continue, because numbers are not finite or inconsistent; the message names them and a remedy."""


class LossInputs(NamedTuple):
    """The numbers of a rollout that the loss needs, each float (B,); `old_values` are used only by value clipping."""

    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    old_values: Tensor


class Sequences(NamedTuple):
    """starts: bool (T, M), whether an episode starts in a step. state: float32 (M, S), before the first step."""

    starts: Tensor
    state: Tensor


class Minibatch(NamedTuple):
    """Some or all transitions of a rollout.

    observations: (B, D), float32, or uint8 if they consist of images only. actions: (B, ...), as sampled. inputs: each
    float32 (B,). sequences: for a policy with memory; B is then T * M, ordered by step.
    """

    observations: Tensor
    actions: Tensor
    inputs: LossInputs
    sequences: Sequences | None = None


def of_sequences(batch: Minibatch, chosen: Tensor) -> Minibatch:
    """The minibatch with the chosen sequences of the batch; chosen: int64 (m,)."""
    assert batch.sequences is not None
    starts, state = batch.sequences

    def samples(column: Tensor) -> Tensor:
        return column.unflatten(0, starts.shape)[:, chosen].flatten(0, 1)  # of (T, M, ...)

    inputs = LossInputs(*map(samples, batch.inputs))
    sequences = Sequences(starts[:, chosen], state[chosen])
    return Minibatch(samples(batch.observations), samples(batch.actions), inputs, sequences)


def with_shorter_sequences(batch: Minibatch, states: Tensor, length: int) -> Minibatch:
    """The batch with each sequence cut into T / length shorter ones, each with the state before its first step.

    states: float32 (T or more, M, S), after each step.
    """
    assert batch.sequences is not None
    starts, state = batch.sequences
    n_steps, n_sequences = starts.shape
    shape = (n_steps // length, length, n_sequences)

    def by_length(column: Tensor) -> Tensor:
        return column.unflatten(0, shape).transpose(0, 1).flatten(1, 2)  # (length, T / length * M, ...)

    before = torch.cat([state, states[length - 1 : n_steps - 1 : length].flatten(0, 1)])
    observations, actions, *inputs = (
        by_length(column).flatten(0, 1) for column in (batch.observations, batch.actions, *batch.inputs)
    )
    return Minibatch(observations, actions, LossInputs(*inputs), Sequences(by_length(starts.flatten()), before))


def first_of(batch: Minibatch, *, size: int) -> Minibatch:
    """The first `size` samples; with memory, the first sequences that fit into `size` samples, but at least one."""
    if batch.sequences is not None:
        length, n_sequences = batch.sequences.starts.shape
        return of_sequences(batch, torch.arange(min(max(1, size // length), n_sequences)))
    inputs = LossInputs(*(column[:size] for column in batch.inputs))
    return Minibatch(batch.observations[:size], batch.actions[:size], inputs)
