"""The minibatches of an update, in random order. B samples, T steps, M sequences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.update.minibatch_gradients import Minibatch
from ml_pipeline.models.rl.update.ppo_loss import LossInputs
from ml_pipeline.runtime.seeding import generator_state, restore_generator

Generator = np.random.Generator | torch.Generator
"""The source of random orders; one of torch's draws them on its own device, without a transfer."""


def draw_orders(n: int, n_epochs: int, generator: Generator) -> list[torch.Tensor]:
    """A permutation of n for each epoch, all drawn at once, so that an update that stops early draws as many."""
    if isinstance(generator, torch.Generator):
        return [torch.randperm(n, generator=generator, device=generator.device) for _ in range(n_epochs)]
    return [torch.from_numpy(generator.permutation(n)) for _ in range(n_epochs)]


def state_of(generator: Generator) -> Any:
    """The state of a generator, for a checkpoint."""
    return generator.get_state() if isinstance(generator, torch.Generator) else generator_state(generator)


def restore(generator: Generator, state: Any) -> None:
    """Set `generator` to a state that `state_of` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        restore_generator(generator, state)


def epochs_of_samples(batch: Minibatch, *, n_epochs: int, size: int, generator: Generator) -> Iterator[Minibatch]:
    """Minibatches of `size` samples without replacement, in a new order each epoch; the last may be smaller."""
    n_samples = len(batch.observations)
    inputs = torch.stack(batch.inputs)
    for drawn in draw_orders(n_samples, n_epochs, generator):
        order = drawn.to(batch.observations.device)
        parts = zip(
            batch.observations[order].split(size),
            batch.actions[order].split(size),
            inputs[:, order].split(size, dim=1),
            strict=True,
        )
        for observations, actions, columns in parts:
            yield Minibatch(observations, actions, LossInputs(*columns.unbind()))


def epochs_of_sequences(batch: Minibatch, *, n_epochs: int, size: int, generator: Generator) -> Iterator[Minibatch]:
    """Minibatches of whole sequences, at least one each, of at most `size` samples; the last may be smaller."""
    assert batch.sequences is not None
    starts, state = batch.sequences
    n_steps, n_sequences = starts.shape
    by_sequence = Minibatch(
        batch.observations.unflatten(0, (n_steps, n_sequences)),  # (T, M, ...), and so all others
        batch.actions.unflatten(0, (n_steps, n_sequences)),
        LossInputs(*(row.unflatten(0, (n_steps, n_sequences)) for row in batch.inputs)),
    )
    for drawn in draw_orders(n_sequences, n_epochs, generator):
        order = drawn.to(starts.device)
        for chosen in order.split(max(1, size // n_steps)):
            yield Minibatch(
                by_sequence.observations[:, chosen].flatten(0, 1),
                by_sequence.actions[:, chosen].flatten(0, 1),
                LossInputs(*(row[:, chosen].flatten() for row in by_sequence.inputs)),
                Sequences(starts[:, chosen], state[chosen]),
            )
