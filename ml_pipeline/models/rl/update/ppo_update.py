"""One update of PPO: epochs of minibatches over a rollout, each a clipped gradient and a step of Adam."""

import math
import warnings
from typing import Any, NamedTuple

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.flat_parameters import flatten_parameters
from ml_pipeline.models.rl.policies.compiled_networks import can_compile, give_up_compiling
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.flat_adam import FlatAdam
from ml_pipeline.models.rl.update.gradient_steps import (
    GradientSteps,
    StepSettings,
    TorchSteps,
    agrees_with_autograd,
    with_normalized_advantages,
)
from ml_pipeline.models.rl.update.minibatch_gradients import (
    AutogradGradients,
    ClosedFormGradients,
    Minibatch,
    MinibatchGradients,
)
from ml_pipeline.models.rl.update.minibatches import Generator, restore, state_of
from ml_pipeline.models.rl.update.ppo_loss import LossInputs, LossRows, LossWeights, approx_kl, loss_terms
from ml_pipeline.models.rl.update.schedules import adapted, scheduled

_ADAM_EPSILON = 1e-5
_KL_TOLERANCE = 1.5
# Before the first step the KL is rounding: within 2e-8 of 0 in sixteen kinds of jobs on a CPU, with images, memory,
# squashed actions and bfloat16 among them. No tighter, since a mean of ten thousand deviations, whose last bit then
# counts, makes it 6e-6.
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

    With target_kl, the update ends before the step of the first minibatch whose approximate KL is more than 1.5 times
    the target, the rule of Stable-Baselines3.
    """

    def __init__(self, policy: Policy, config: PPOConfig, generator: Generator) -> None:
        self._policy = policy
        self._config = config
        self._generator = generator
        flat = flatten_parameters(policy.network.parameter_order())
        assert flat.grad is not None
        self._optimizer = FlatAdam(flat, flat.grad, epsilon=_ADAM_EPSILON)
        self._rate_factor = 1.0  # of an adaptive learning rate
        policy.refresh()
        self._steps = self._fastest_steps()
        self._checked = False

    def __call__(self, batch: Minibatch, *, progress: float) -> UpdateStatistics:
        """Learn from a whole rollout; progress: the share of training that is over, 0 in the first update.

        Raises TrainingFailed where the loss is not finite, or the policy contradicts itself.
        """
        config = self._config
        learning_rate = self._learning_rate(progress)
        clip_range = scheduled(config.clip_range, config.clip_range_schedule, progress)
        ent_coef = scheduled(config.ent_coef, config.ent_coef_schedule, progress)
        weights = LossWeights(clip_range, config.clip_range_vf, ent_coef, config.vf_coef)
        limit = math.inf if config.target_kl is None else _KL_TOLERANCE * config.target_kl
        if config.normalize_advantages and config.normalize_advantages_over == "batch":
            batch = with_normalized_advantages(batch)
        self._check_steps(batch, weights)
        taken = self._steps(batch, StepSettings(weights, learning_rate, limit))
        _check_first(taken.first)
        self._policy.refresh()
        terms = loss_terms(taken.rows, clip_range)
        means = {name: value.item() for name, value in terms._asdict().items()}
        means["gradient_norm"] = taken.norms.mean().item()
        broken = [name for name, value in means.items() if not math.isfinite(value)]
        if broken:
            raise TrainingFailed(
                f"Of the update no longer finite: {', '.join(broken)}; go on with a smaller --learning-rate or "
                "--max-grad-norm, and check the environment's observations and rewards for huge numbers."
            )
        if config.learning_rate_schedule == "adaptive":
            assert config.target_kl is not None
            self._rate_factor = adapted(self._rate_factor, approx_kl=means["approx_kl"], target_kl=config.target_kl)
        return UpdateStatistics(
            **means, learning_rate=learning_rate, clip_range=clip_range, n_minibatches=len(taken.norms)
        )

    def state_dict(self) -> dict[str, Any]:
        """A copy, not views."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "generator": state_of(self._generator),
            "rate_factor": self._rate_factor,
            "steps": self._steps.kind,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        restore(self._generator, state["generator"])
        self._rate_factor = state["rate_factor"]
        if state.get("steps", self._steps.kind) != self._steps.kind:
            warnings.warn(
                f"The checkpoint was written by {state['steps']} steps and goes on with {self._steps.kind} ones, as "
                "numba is installed or not: the last digits may come out differently than without the interruption.",
                stacklevel=2,
            )

    def _learning_rate(self, progress: float) -> float:
        config = self._config
        if config.learning_rate_schedule == "adaptive":
            return config.learning_rate * self._rate_factor
        return scheduled(config.learning_rate, config.learning_rate_schedule, progress)

    def _check_steps(self, batch: Minibatch, weights: LossWeights) -> None:
        """Once a run: autograd takes over where a faster way does not agree with it on this very network."""
        network = self._policy.network
        if self._checked or not isinstance(network, ActorCritic):  # whose steps are autograd's anyway
            return
        self._checked = True
        first = slice(self._config.minibatch_size)
        inputs = LossInputs(*(column[first] for column in batch.inputs))
        minibatch = with_normalized_advantages(Minibatch(batch.observations[first], batch.actions[first], inputs))
        # Ratios are 1 but for rounding, which must not decide what is clipped.
        weights = weights._replace(clip_range=max(weights.clip_range, 0.01))
        if agrees_with_autograd(self._steps, network, self._optimizer, minibatch, weights):
            return
        warnings.warn(
            f"The {self._steps.kind} gradient of this network differs from autograd's, which takes its place and is "
            "slower; please report it, with the network's sizes and the versions of torch and numba.",
            stacklevel=2,
        )
        self._steps = self._in_torch(AutogradGradients(network))

    def _in_torch(self, gradients: MinibatchGradients) -> TorchSteps:
        return TorchSteps(gradients, self._optimizer, self._config, self._generator)

    def _fastest_steps(self) -> GradientSteps:
        network = self._policy.network
        if isinstance(network, ActorCritic) and can_compile(network):
            try:
                return CompiledSteps(network, self._optimizer, self._config, self._generator)
            except Exception as error:  # numba's, of any kind
                give_up_compiling(error)
        if isinstance(network, ActorCritic) and self._policy.device.type == "cpu":
            return self._in_torch(ClosedFormGradients(network))
        return self._in_torch(AutogradGradients(network))


def _check_first(rows: LossRows) -> None:
    # Before any step the policy is still the one that acted, so every ratio is 1 and the KL is rounding.
    kl = approx_kl(rows.log_ratios).item()
    if kl <= _FIRST_KL:
        return
    raise TrainingFailed(
        f"Before the first step of an update the policy must agree with itself, but its KL is {kl:.3g}: "
        "an observation, action or reward of the rollout is NaN or infinite, or the network is not deterministic."
    )
