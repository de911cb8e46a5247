"""One update of PPO: epochs of minibatches over a rollout, each a clipped gradient and a step of Adam."""

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.update.gradient_steps import GradientSteps, StepSettings, with_normalized_advantages
from ml_pipeline.models.rl.update.minibatch_gradients import Minibatch
from ml_pipeline.models.rl.update.minibatches import restore, state_of
from ml_pipeline.models.rl.update.ppo_loss import LossRows, LossWeights, approx_kl, loss_terms
from ml_pipeline.models.rl.update.schedules import adapted, of_function, scheduled

_KL_TOLERANCE = 1.5
# Before the first step the KL is rounding: within 2e-8 of 0 in sixteen kinds of jobs on a CPU, with images, memory,
# squashed actions and bfloat16 among them. No tighter, since a mean of ten thousand deviations, whose last bit then
# counts, makes it 6e-6.
_FIRST_KL = 1e-5


class TrainingFailed(RuntimeError):
    """Something is not finite, or inconsistent, and cannot be learned from; the message says what, and what helps."""


class UpdateStatistics(NamedTuple):
    """Means over one update: the loss's parts over samples, `gradient_norm` over its `n_minibatches`."""

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
    """Changes the policy's weights by PPO; called with one rollout at a time.

    With target_kl, the update ends before the step of the first minibatch whose approximate KL is above 1.5 times the
    target, the rule of Stable-Baselines3.
    """

    def __init__(self, policy: Policy, config: PPOConfig, steps: GradientSteps) -> None:
        """steps: made for this policy and configuration, such as by `fastest_steps`.

        Raises UserError where a function of the configuration is not at hand, or gives no number.
        """
        self._policy = policy
        self._config = config
        self._steps = steps
        self._rate_factor = 1.0  # of an adaptive learning rate
        self._settings(progress=0.0)  # a function that is lost, or gives no number, is told before any step

    def __call__(self, batch: Minibatch, *, progress: float) -> UpdateStatistics:
        """Learn from a whole rollout; progress: the share of training before it, 0 in the first update.

        Raises TrainingFailed if the loss is not finite, or the policy does not agree with its own rollout.
        """
        config, settings = self._config, self._settings(progress)
        if config.normalize_advantages and config.normalize_advantages_over == "batch":
            batch = with_normalized_advantages(batch)
        taken = self._steps(batch, settings)
        _check_first(taken.first)
        self._policy.refresh()
        terms = loss_terms(taken.rows, settings.weights.clip_range)
        means = {name: value.item() for name, value in terms._asdict().items()}
        means["gradient_norm"] = taken.norms.mean().item()
        _check_finite(means)
        if config.learning_rate_schedule == "adaptive":
            assert config.target_kl is not None
            self._rate_factor = adapted(self._rate_factor, approx_kl=means["approx_kl"], target_kl=config.target_kl)
        return UpdateStatistics(
            **means,
            learning_rate=settings.learning_rate,
            clip_range=settings.weights.clip_range,
            n_minibatches=len(taken.norms),
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next update depends on besides the policy; copies, not views."""
        return {
            "optimizer": self._steps.optimizer.state_dict(),
            "generator": state_of(self._steps.generator),
            "rate_factor": self._rate_factor,
            "steps": self._steps.kind,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; warns if other steps wrote it, whose last digits may differ."""
        self._steps.optimizer.load_state_dict(state["optimizer"])
        restore(self._steps.generator, state["generator"])
        self._rate_factor = state["rate_factor"]
        if state.get("steps", self._steps.kind) != self._steps.kind:
            warnings.warn(
                f"The checkpoint was written by {state['steps']} steps and continues with {self._steps.kind} ones, "
                "since numba is installed only here or only there, or since a version of this package wrote it that "
                "did not compile such a network: the last digits may differ from those of an "
                "uninterrupted run.",
                stacklevel=2,
            )

    def _settings(self, progress: float) -> StepSettings:
        config = self._config
        clip_range, ent_coef, learning_rate = (
            self._value(name, progress) for name in ("clip_range", "ent_coef", "learning_rate")
        )
        if config.learning_rate_schedule == "adaptive":
            learning_rate *= self._rate_factor
        weights = LossWeights(clip_range, config.clip_range_vf, ent_coef, config.vf_coef)
        kl_limit = math.inf if config.target_kl is None else _KL_TOLERANCE * config.target_kl
        return StepSettings(weights, learning_rate, kl_limit)

    def _value(self, name: str, progress: float) -> float:
        start = getattr(self._config, name)
        if callable(start):
            return of_function(name, start, progress)
        return scheduled(start, getattr(self._config, f"{name}_schedule"), progress)


def _check_finite(means: Mapping[str, float]) -> None:
    broken = [name for name, value in means.items() if not math.isfinite(value)]
    if broken:
        raise TrainingFailed(
            f"No longer finite after the update: {', '.join(broken)}; continue with a smaller --learning-rate or "
            "--max-grad-norm, and check the environment's observations and rewards for huge numbers."
        )


def _check_first(rows: LossRows) -> None:
    # Before any step the policy is still the one that acted, so every ratio is 1 and the KL is rounding.
    kl = approx_kl(rows.log_ratios).item()
    if kl <= _FIRST_KL:
        return
    raise TrainingFailed(
        f"Before the first step of an update the policy must agree with itself, but its KL is {kl:.3g}: "
        "an observation, action or reward of the rollout is NaN or infinite, or the network is not deterministic."
    )
