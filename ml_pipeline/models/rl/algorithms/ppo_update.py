"""One update of PPO: epochs of minibatches over a rollout, each a clipped gradient and a step of Adam."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.flat_adam import FlatAdam
from ml_pipeline.models.rl.algorithms.minibatch_gradients import (
    AutogradGradients,
    ClosedFormGradients,
    Minibatch,
    MinibatchGradients,
)
from ml_pipeline.models.rl.algorithms.minibatches import epochs_of_samples, epochs_of_sequences
from ml_pipeline.models.rl.algorithms.ppo_loss import (
    LossRows,
    LossWeights,
    approx_kl,
    loss_terms,
    normalize_advantages,
)
from ml_pipeline.models.rl.algorithms.schedules import adapted, scheduled
from ml_pipeline.models.rl.core.seeding import generator_state, restore_generator
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.flat_parameters import flatten_parameters
from ml_pipeline.models.rl.networks.policy import Policy

_ADAM_EPSILON = 1e-5
_KL_TOLERANCE = 1.5
_FIRST_KL = 1e-5


class TrainingFailed(RuntimeError):
    """The update met numbers that it cannot learn from; the message says which and what helps."""


class UpdateStatistics(NamedTuple):
    """Means over one update: of the loss's parts over samples, of `gradient_norm` over its `n_minibatches`."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    gradient_norm: float  # before clipping
    learning_rate: float
    clip_range: float
    n_minibatches: int


class PPOUpdate:
    """The optimizer and what it needs; called with a rollout, it changes the policy's weights.

    With target_kl, the update ends before the step of the first minibatch whose
    approximate KL is more than 1.5 times the target, the rule of Stable-Baselines3.
    """

    def __init__(self, policy: Policy, config: PPOConfig, generator: np.random.Generator) -> None:
        self._policy = policy
        self._config = config
        self._generator = generator
        flat = flatten_parameters(policy.network.parameter_order())
        assert flat.grad is not None
        self._gradient = flat.grad
        self._optimizer = FlatAdam(flat, flat.grad, epsilon=_ADAM_EPSILON)
        self._rate_factor = 1.0  # of an adaptive learning rate
        policy.refresh()
        self._gradients = _gradients_for(policy)

    def __call__(self, batch: Minibatch, *, progress: float) -> UpdateStatistics:
        """Learn from a whole rollout; progress: the share of training that is over, 0 in the first update.

        Raises TrainingFailed where the loss is not finite, or the policy contradicts itself.
        """
        config = self._config
        learning_rate = self._learning_rate(progress)
        clip_range = scheduled(config.clip_range, config.clip_range_schedule, progress)
        ent_coef = scheduled(config.ent_coef, config.ent_coef_schedule, progress)
        weights = LossWeights(clip_range, config.clip_range_vf, ent_coef, config.vf_coef)
        history: list[LossRows] = []
        norms: list[Tensor] = []
        for minibatch in self._minibatches(batch):
            rows = self._gradients(minibatch, weights)
            if not history:
                _check_first(rows)
            if config.target_kl is not None and approx_kl(rows.log_ratios) > _KL_TOLERANCE * config.target_kl:
                break
            norm = torch.linalg.vector_norm(self._gradient)
            self._gradient.mul_((config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            self._optimizer.step(learning_rate)
            history.append(rows)
            norms.append(norm)
        self._policy.refresh()
        terms = loss_terms(LossRows(*map(torch.cat, zip(*history, strict=True))), clip_range)
        means = {name: value.item() for name, value in terms._asdict().items()}
        means["gradient_norm"] = torch.stack(norms).mean().item()
        broken = [name for name, value in means.items() if not math.isfinite(value)]
        if broken:
            raise TrainingFailed(
                f"Of the update no longer finite: {', '.join(broken)}; go on with a smaller --learning-rate or "
                "--max-grad-norm, and check the environment's observations and rewards for huge numbers."
            )
        if config.learning_rate_schedule == "adaptive":
            assert config.target_kl is not None
            self._rate_factor = adapted(self._rate_factor, approx_kl=means["approx_kl"], target_kl=config.target_kl)
        return UpdateStatistics(**means, learning_rate=learning_rate, clip_range=clip_range, n_minibatches=len(norms))

    def state_dict(self) -> dict[str, Any]:
        """A copy, not views."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "generator": generator_state(self._generator),
            "rate_factor": self._rate_factor,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        restore_generator(self._generator, state["generator"])
        self._rate_factor = state["rate_factor"]

    def _learning_rate(self, progress: float) -> float:
        config = self._config
        if config.learning_rate_schedule == "adaptive":
            return config.learning_rate * self._rate_factor
        return scheduled(config.learning_rate, config.learning_rate_schedule, progress)

    def _minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        config = self._config
        normalize = config.normalize_advantages
        if normalize and config.normalize_advantages_over == "batch":
            batch, normalize = _with_normalized_advantages(batch), False
        epochs = epochs_of_samples if batch.sequences is None else epochs_of_sequences
        for minibatch in epochs(batch, n_epochs=config.n_epochs, size=config.minibatch_size, generator=self._generator):
            yield _with_normalized_advantages(minibatch) if normalize else minibatch


def _with_normalized_advantages(batch: Minibatch) -> Minibatch:
    advantages = normalize_advantages(batch.inputs.advantages)
    return batch._replace(inputs=batch.inputs._replace(advantages=advantages))


def _gradients_for(policy: Policy) -> MinibatchGradients:
    if isinstance(policy.network, ActorCritic) and policy.device.type == "cpu":
        return ClosedFormGradients(policy.network)
    return AutogradGradients(policy.network)


def _check_first(rows: LossRows) -> None:
    # Before any step the policy is still the one that acted, so every ratio is 1 and the KL is rounding.
    kl = approx_kl(rows.log_ratios).item()
    if kl <= _FIRST_KL:
        return
    raise TrainingFailed(
        f"Before the first step of an update the policy must agree with itself, but its KL is {kl:.3g}: "
        "an observation, action or reward of the rollout is NaN or infinite, or the network is not deterministic."
    )
