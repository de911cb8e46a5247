"""Gradient steps that must agree with autograd on the user's own network, or autograd takes their place."""

import math
import warnings

from torch import Tensor

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.update.flat_adam import FlatAdam
from ml_pipeline.models.rl.update.gradient_steps import (
    GradientSteps,
    StepSettings,
    StepsTaken,
    TorchSteps,
    with_normalized_advantages,
)
from ml_pipeline.models.rl.update.minibatch_gradients import AutogradGradients, Minibatch
from ml_pipeline.models.rl.update.minibatches import Generator, first_of
from ml_pipeline.models.rl.update.ppo_loss import LossWeights

_AGREEMENT = 1e-3
_NEGLIGIBLE = 1e-6


class CheckedSteps:
    """Compares fast steps with autograd once, on the first minibatch of the first update.

    If their gradients differ by more than rounding, it warns, and takes autograd's steps from then on.
    """

    def __init__(self, steps: GradientSteps, network: ActorCritic | GeneralActorCritic, config: PPOConfig) -> None:
        self._steps = steps
        self._network = network
        self._config = config
        self._checked = False

    @property
    def kind(self) -> str:
        return self._steps.kind

    @property
    def optimizer(self) -> FlatAdam:
        return self._steps.optimizer

    @property
    def generator(self) -> Generator:
        return self._steps.generator

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken:
        if not self._checked:
            self._checked = True
            self._check(batch, settings.weights)
        return self._steps(batch, settings)

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        return self._steps.gradient(minibatch, weights)

    def _check(self, batch: Minibatch, weights: LossWeights) -> None:
        minibatch = with_normalized_advantages(first_of(batch, size=self._config.minibatch_size))
        # Ratios are 1 but for rounding, which must not decide what is clipped.
        weights = weights._replace(clip_range=max(weights.clip_range, 0.01))
        if agrees_with_autograd(self._steps, self._network, minibatch, weights):
            return
        warnings.warn(
            f"The {self._steps.kind} gradient of this network differs from autograd's, which takes its place and is "
            "slower; please report it, with the network's sizes and the versions of torch and numba.",
            stacklevel=2,
        )
        gradients = AutogradGradients(self._network)
        self._steps = TorchSteps(gradients, self._steps.optimizer, self._config, self._steps.generator)


def agrees_with_autograd(
    steps: GradientSteps, network: ActorCritic | GeneralActorCritic, minibatch: Minibatch, weights: LossWeights
) -> bool:
    """Whether the gradient for a minibatch is autograd's, but for rounding.

    True as well if autograd's is not finite: the update reports that.
    """
    found = steps.gradient(minibatch, weights)
    AutogradGradients(network)(minibatch, weights)
    expected = steps.optimizer.gradient
    distance, norm = (found - expected).norm().item(), expected.norm().item()
    return not math.isfinite(norm) or distance <= _AGREEMENT * norm + _NEGLIGIBLE
