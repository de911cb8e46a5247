"""The order in which an update sees a rollout. B samples, T steps, M sequences."""

from collections.abc import Iterator

import numpy as np
import torch

from ml_pipeline.models.rl.algorithms.minibatch_gradients import Minibatch
from ml_pipeline.models.rl.algorithms.ppo_loss import LossInputs
from ml_pipeline.models.rl.networks.memory import Sequences


def draw_orders(n: int, n_epochs: int, generator: np.random.Generator) -> list[np.ndarray]:
    """An order of n for each epoch, all drawn ahead: an update that stops early draws as much as one that does not."""
    return [generator.permutation(n) for _ in range(n_epochs)]


def epochs_of_samples(
    batch: Minibatch, *, n_epochs: int, size: int, generator: np.random.Generator
) -> Iterator[Minibatch]:
    """Minibatches of `size` samples without replacement, in a new order every epoch; the last may be smaller."""
    n_samples = len(batch.observations)
    inputs = torch.stack(batch.inputs)
    for drawn in draw_orders(n_samples, n_epochs, generator):
        order = torch.from_numpy(drawn).to(batch.observations.device)
        parts = zip(
            batch.observations[order].split(size),
            batch.actions[order].split(size),
            inputs[:, order].split(size, dim=1),
            strict=True,
        )
        for observations, actions, columns in parts:
            yield Minibatch(observations, actions, LossInputs(*columns.unbind()))


def epochs_of_sequences(
    batch: Minibatch, *, n_epochs: int, size: int, generator: np.random.Generator
) -> Iterator[Minibatch]:
    """Minibatches of whole sequences, as many as `size` samples hold, but at least one; the last may be fewer."""
    assert batch.sequences is not None
    starts, state = batch.sequences
    n_steps, n_sequences = starts.shape
    by_sequence = Minibatch(
        batch.observations.unflatten(0, (n_steps, n_sequences)),  # (T, M, ...), and so all others
        batch.actions.unflatten(0, (n_steps, n_sequences)),
        LossInputs(*(row.unflatten(0, (n_steps, n_sequences)) for row in batch.inputs)),
    )
    for drawn in draw_orders(n_sequences, n_epochs, generator):
        order = torch.from_numpy(drawn).to(starts.device)
        for chosen in order.split(max(1, size // n_steps)):
            yield Minibatch(
                by_sequence.observations[:, chosen].flatten(0, 1),
                by_sequence.actions[:, chosen].flatten(0, 1),
                LossInputs(*(row[:, chosen].flatten() for row in by_sequence.inputs)),
                Sequences(starts[:, chosen], state[chosen]),
            )
