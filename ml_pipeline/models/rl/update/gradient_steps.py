"""The minibatches of an update, each a clipped gradient and a step of Adam: in torch, for any network.

What else can take these steps must agree with autograd: `agrees_with_autograd` compares them on the user's own network.
B samples, P parameters.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.update.flat_adam import FlatAdam
from ml_pipeline.models.rl.update.minibatch_gradients import AutogradGradients, Minibatch, MinibatchGradients
from ml_pipeline.models.rl.update.minibatches import Generator, epochs_of_samples, epochs_of_sequences
from ml_pipeline.models.rl.update.ppo_loss import LossRows, LossWeights, approx_kl, normalize_advantages

_AGREEMENT = 1e-3
_NEGLIGIBLE = 1e-6


class StepSettings(NamedTuple):
    """As they stand in this update; steps end before one whose approximate KL is above `kl_limit`, maybe infinite."""

    weights: LossWeights
    learning_rate: float
    kl_limit: float


class StepsTaken(NamedTuple):
    """first: of the first minibatch, before any step. rows: of all samples stepped on. norms: float (n_minibatches,),
    of the gradients before they were clipped.
    """

    first: LossRows
    rows: LossRows
    norms: Tensor


class GradientSteps(Protocol):
    """Takes the steps of a whole update."""

    kind: str
    """"torch" or "compiled"; of the same kind, results are the same to the last digit."""

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken: ...

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        """The gradient by all parameters, float (P,), without a step. Advantages are taken as they are."""


class TorchSteps:
    """One minibatch after another."""

    kind = "torch"

    def __init__(
        self, gradients: MinibatchGradients, optimizer: FlatAdam, config: PPOConfig, generator: Generator
    ) -> None:
        self._gradients = gradients
        self._optimizer = optimizer
        self._config = config
        self._generator = generator

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken:
        gradient, limited = self._optimizer.gradient, math.isfinite(settings.kl_limit)
        history: list[LossRows] = []
        norms: list[Tensor] = []
        for minibatch in self._minibatches(batch):
            rows = self._gradients(minibatch, settings.weights)
            if limited and history and approx_kl(rows.log_ratios) > settings.kl_limit:
                break
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            self._optimizer.step(settings.learning_rate)
            history.append(rows)
            norms.append(norm)
        return StepsTaken(history[0], LossRows(*map(torch.cat, zip(*history, strict=True))), torch.stack(norms))

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        self._gradients(minibatch, weights)
        return self._optimizer.gradient.clone()

    def _minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        config = self._config
        epochs = epochs_of_samples if batch.sequences is None else epochs_of_sequences
        for minibatch in epochs(batch, n_epochs=config.n_epochs, size=config.minibatch_size, generator=self._generator):
            yield with_normalized_advantages(minibatch) if normalizes_minibatches(config) else minibatch


def normalizes_minibatches(config: PPOConfig) -> bool:
    """Whether advantages are normalized within each minibatch, and not within the batch or not at all."""
    return config.normalize_advantages and config.normalize_advantages_over == "minibatch"


def with_normalized_advantages(batch: Minibatch) -> Minibatch:
    advantages = normalize_advantages(batch.inputs.advantages)
    return batch._replace(inputs=batch.inputs._replace(advantages=advantages))


def agrees_with_autograd(
    steps: GradientSteps, network: ActorCritic, optimizer: FlatAdam, minibatch: Minibatch, weights: LossWeights
) -> bool:
    """Whether the gradient for a minibatch is autograd's, to more than rounding.

    True as well where autograd's is not finite: that is the update's to report.
    """
    found = steps.gradient(minibatch, weights)
    AutogradGradients(network)(minibatch, weights)
    expected = optimizer.gradient
    distance, norm = (found - expected).norm().item(), expected.norm().item()
    return not math.isfinite(norm) or distance <= _AGREEMENT * norm + _NEGLIGIBLE
