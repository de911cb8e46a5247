"""One update of PPO: epochs of minibatches over a rollout, each a clipped gradient and a step of Adam."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.config.ppo import PPOConfig, Schedule
from ml_pipeline.models.rl.algorithms.minibatch_gradients import AutogradGradients, ClosedFormGradients, Minibatch
from ml_pipeline.models.rl.algorithms.ppo_loss import LossInputs, LossTerms, LossWeights, normalize_advantages
from ml_pipeline.models.rl.core.seeding import generator_state, restore_generator
from ml_pipeline.models.rl.networks.flat_parameters import flatten_parameters
from ml_pipeline.models.rl.networks.policy import Policy

_ADAM_EPSILON = 1e-5
_KL_TOLERANCE = 1.5
_FIRST_KL = 1e-5


class TrainingFailed(RuntimeError):
    """The update met numbers that it cannot learn from; the message says which and what helps."""


class UpdateStatistics(NamedTuple):
    """Means over the minibatches of one update; `n_minibatches` is fewer than planned where target_kl stopped it."""

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

    Minibatches are drawn without replacement, in a new order every epoch; where minibatch_size does not divide B, the
    last of an epoch is smaller. With target_kl, the update ends before the step of the first minibatch whose
    approximate KL is more than 1.5 times the target, the rule of Stable-Baselines3.
    """

    def __init__(self, policy: Policy, config: PPOConfig, generator: np.random.Generator) -> None:
        self._policy = policy
        self._config = config
        self._generator = generator
        self._flat = flatten_parameters(policy.network)
        assert self._flat.grad is not None
        self._gradient = self._flat.grad
        policy.refresh()
        self._optimizer = torch.optim.Adam([self._flat], lr=config.learning_rate, eps=_ADAM_EPSILON, fused=True)
        on_cpu = policy.device.type == "cpu"
        self._gradients = (ClosedFormGradients if on_cpu else AutogradGradients)(policy.network)

    def __call__(self, batch: Minibatch, *, progress: float) -> UpdateStatistics:
        """Learn from a whole rollout; progress: the share of training that is over, 0 in the first update.

        Raises TrainingFailed where the loss is not finite, or the policy contradicts itself.
        """
        config = self._config
        learning_rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        clip_range = scheduled(config.clip_range, config.clip_range_schedule, progress)
        self._optimizer.param_groups[0]["lr"] = learning_rate
        weights = LossWeights(clip_range, config.clip_range_vf, config.ent_coef, config.vf_coef)
        history: list[Tensor] = []
        for minibatch in self._minibatches(batch):
            terms = self._gradients(minibatch, weights)
            if not history:
                _check_first(terms)
            if config.target_kl is not None and terms.approx_kl > _KL_TOLERANCE * config.target_kl:
                break
            norm = torch.linalg.vector_norm(self._gradient)
            self._gradient.mul_((config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            self._optimizer.step()
            history += [*terms, norm]
        self._policy.refresh()
        rows = torch.stack(history).view(-1, len(LossTerms._fields) + 1)
        means = dict(zip([*LossTerms._fields, "gradient_norm"], rows.mean(dim=0).tolist(), strict=True))
        if not np.isfinite(list(means.values())).all():
            raise TrainingFailed(
                "The loss is no longer finite; resume from the last checkpoint with a smaller --learning-rate or "
                "--max-grad-norm, and check the environment's observations and rewards for NaN."
            )
        return UpdateStatistics(**means, learning_rate=learning_rate, clip_range=clip_range, n_minibatches=len(rows))

    def state_dict(self) -> dict[str, Any]:
        """A copy, not views."""
        return {"optimizer": copy.deepcopy(self._optimizer.state_dict()), "generator": generator_state(self._generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would share the moments
        restore_generator(self._generator, state["generator"])

    def _minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        size, n_samples = self._config.minibatch_size, len(batch.observations)
        for _ in range(self._config.n_epochs):
            order = torch.from_numpy(self._generator.permutation(n_samples)).to(batch.observations.device)
            shuffled = Minibatch(
                batch.observations[order], batch.actions[order], LossInputs(*(x[order] for x in batch.inputs))
            )
            for start in range(0, n_samples, size):
                part = slice(start, start + size)
                inputs = LossInputs(*(x[part] for x in shuffled.inputs))
                if self._config.normalize_advantages:
                    inputs = inputs._replace(advantages=normalize_advantages(inputs.advantages))
                yield Minibatch(shuffled.observations[part], shuffled.actions[part], inputs)


def scheduled(start: float, schedule: Schedule, progress: float) -> float:
    """The value at this share of training: `start`, or on the line from it to zero."""
    return start if schedule == "constant" else start * max(0.0, 1.0 - progress)


def _check_first(terms: LossTerms) -> None:
    # Before any step the policy is still the one that acted, so every ratio is 1 and the KL is rounding.
    if terms.approx_kl <= _FIRST_KL:
        return
    raise TrainingFailed(
        f"Before the first step of an update the policy must agree with itself, but its KL is {terms.approx_kl:.3g}: "
        "an observation, action or reward of the rollout is NaN or infinite, or the network is not deterministic."
    )
