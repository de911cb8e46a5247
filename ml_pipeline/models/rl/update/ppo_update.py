"""One update of PPO: epochs of minibatches over a rollout, with hyperparameters that follow schedules.

`fastest_steps` chooses the fastest gradient steps for the network, the machine and the installed packages. Fast steps
are compared with autograd on the user's own network; if they disagree, autograd replaces them.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ml_pipeline.config.checks import check_non_negative
from ml_pipeline.config.ppo import PPOConfig, Schedule
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.policies.compiled_networks import can_compile, give_up_compiling
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.ranks import OneRank, Ranks
from ml_pipeline.models.rl.transitions import Minibatch, TrainingFailed, first_of
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_chunks import ChunkedGradients, ChunkSharing
from ml_pipeline.models.rl.update.gradient_steps import (
    FlatAdam,
    Generator,
    GradientSteps,
    StepSettings,
    StepsTaken,
    TorchSteps,
    flatten_parameters,
    restore,
    state_of,
    with_normalized_advantages,
)
from ml_pipeline.models.rl.update.ppo_loss import (
    AutogradGradients,
    ClosedFormGradients,
    LossRows,
    LossWeights,
    approx_kl,
    loss_terms,
)

_KL_TOLERANCE = 1.5
# Before the first step the KL is rounding error: within 2e-8 of 0 in sixteen kinds of jobs on a CPU, including images,
# memory, squashed actions and bfloat16. The limit is not tighter because the mean of ten thousand deviations, where the
# last bit counts, gave 6e-6.
_FIRST_KL = 1e-5

CHANGEABLE = ("learning_rate", "clip_range", "ent_coef", "vf_coef", "target_kl")
"""Settings that each update reads anew."""


class UpdateStatistics(NamedTuple):
    """Means over one update: the parts of the loss over samples, `gradient_norm` over `n_minibatches`."""

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
    """Updates the weights of the policy by PPO; each call takes one rollout.

    With target_kl, an update ends before the step of the first minibatch whose approximate KL exceeds 1.5 times the
    target. This is the rule of Stable-Baselines3.
    """

    def __init__(self, policy: Policy, config: PPOConfig, steps: GradientSteps) -> None:
        """steps: made for this policy and configuration, for example by `fastest_steps`.

        Raises UserError if a function in the configuration was not passed again, or does not return a number.
        """
        self._policy = policy
        self._config = config
        self._steps = steps
        self._rate_factor = 1.0  # of an adaptive learning rate
        self._settings(progress=0.0)  # reports a missing or broken function before any step

    def use(self, config: PPOConfig) -> None:
        """Use the settings in `CHANGEABLE` of this configuration from the next update on."""
        self._config = config

    def __call__(self, batch: Minibatch, *, progress: float) -> UpdateStatistics:
        """Learn from a rollout. progress: the share of training before it, 0 in the first update.

        Raises TrainingFailed if the loss is not finite, or if the policy computes other probabilities than the rollout
        was collected with.
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
        """All that the next update depends on, except the policy; copies, not views."""
        return {
            "optimizer": self._steps.optimizer.state_dict(),
            "generator": state_of(self._steps.generator),
            "rate_factor": self._rate_factor,
            "steps": self._steps.kind,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Warns if another kind of steps wrote it, because the last digits may then differ."""
        self._steps.optimizer.load_state_dict(state["optimizer"])
        restore(self._steps.generator, state["generator"])
        self._rate_factor = state["rate_factor"]
        if state.get("steps", self._steps.kind) != self._steps.kind:
            warnings.warn(
                f"The checkpoint was written by {state['steps']} steps and continues with {self._steps.kind} ones. "
                "Either numba is installed in only one of the two places, or an earlier version of this package, which "
                "did not compile such a network, wrote the checkpoint. The last digits may differ from those of an "
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


def scheduled(start: float, schedule: Schedule, progress: float) -> float:
    """The value after this share of training: constant, or from `start` to 0 on a line or half a cosine wave.

    >>> [round(scheduled(0.4, name, 0.25), 4) for name in ("constant", "linear", "cosine")]
    [0.4, 0.3, 0.3414]
    """
    left = _left(progress)
    if schedule == "linear":
        return start * left
    if schedule == "cosine":
        return start * 0.5 * (1.0 - math.cos(math.pi * left))
    return start


def of_function(name: str, function: Callable[[float], float], progress: float) -> float:
    """The value of setting `name`, by a user's function of the share of training that is left, from 1 to 0.

    Raises UserError if the function does not return a number of at least 0.

    >>> of_function("clip_range", lambda left: 0.1 + 0.2 * left, 0.75)
    0.15000000000000002
    """
    left = _left(progress)
    value = function(left)
    check_non_negative(f"{name}({left:.4g})", value)
    return float(value)


def adapted(factor: float, *, approx_kl: float, target_kl: float) -> float:
    """The factor by which the next update scales the learning rate, given the KL of the last update.

    The factor falls by a third if the KL is above twice the target, and rises by half if the KL is below half the
    target. It stays between 0.01 and 100.
    Source: adapted from the rule for the KL penalty in Schulman et al. 2017, arXiv:1707.06347, section 4.

    >>> adapted(1.0, approx_kl=0.03, target_kl=0.01), adapted(1.0, approx_kl=0.004, target_kl=0.01)
    (0.6666666666666666, 1.5)
    >>> adapted(1.0, approx_kl=0.015, target_kl=0.01), adapted(90.0, approx_kl=0.0, target_kl=0.01)
    (1.0, 100.0)
    """
    if approx_kl > _KL_FACTOR * target_kl:
        return max(_LEAST, factor / _STEP)
    if approx_kl < target_kl / _KL_FACTOR:
        return min(_MOST, factor * _STEP)
    return factor


_KL_FACTOR = 2.0
_STEP = 1.5


def _check_finite(means: Mapping[str, float]) -> None:
    broken = [name for name, value in means.items() if not math.isfinite(value)]
    if broken:
        raise TrainingFailed(
            f"No longer finite after the update: {', '.join(broken)}; continue with a smaller --learning-rate or "
            "--max-grad-norm, and check the environment for huge observations and rewards."
        )


def _check_first(rows: LossRows) -> None:
    # Before any step the policy is still the one that acted, so every ratio is 1 up to rounding.
    kl = approx_kl(rows.log_ratios).item()
    if kl <= _FIRST_KL:
        return
    raise TrainingFailed(
        "Before the first step of an update, the policy must give the probabilities with which it acted, but the KL "
        f"divergence is {kl:.3g}. Look for NaN or infinite observations, actions or rewards in the rollout, and for "
        "layers that are not deterministic."
    )


def _left(progress: float) -> float:
    return min(1.0, max(0.0, 1.0 - progress))


_LEAST, _MOST = 1e-2, 1e2


_ADAM_EPSILON = 1e-5
# Below the smaller limit, a second thread gained at most a third. One core takes for a minibatch of 256, whole and in
# 2, 4 and 8 chunks (Zen 4): two perceptrons of 512x512 (work 1.5e8) 13, 16, 18 and 24 ms; images of 40x40x3 (work 7e7)
# 42, 47, 52 and 65 ms, measured with gradients by the large weights in each chunk.
_WORTH_CHUNKS = {8: 4e8, 4: 3e7}
_IMAGES_IN_CHUNK = 64
"""At least, because each chunk reads all weights. 128 images of 84x84x4, whole and in 2, 4 and 8 chunks, take one core
82, 83, 88 and 125 ms, and 47, 50, 59 and 69 ms in bfloat16 (Zen 4)."""


_AGREEMENT = 1e-3
_NEGLIGIBLE = 1e-6


def fastest_steps(policy: Policy, config: PPOConfig, generator: Generator, ranks: Ranks | None = None) -> GradientSteps:
    """The fastest steps for this policy. `generator` draws the order of the minibatches.

    On a CPU, the compiled kernel takes the steps of perceptrons, and of memory over plain numbers, if numba works and
    the kernel supports the distribution. Other pairs of perceptrons on a CPU use the closed form if their hidden sizes
    are equal. Both are compared with autograd once. All other networks and devices, and all gradients in chunks, use
    autograd.
    ranks: the ranks that take the same steps; they share chunks if that is faster. Steps in torch end if a rank is
    lost.
    """
    ranks = ranks or OneRank()
    optimizer = _optimizer_of(policy)
    network = policy.network
    if policy.device.type == "cpu" and can_compile(network):
        try:
            return CheckedSteps(CompiledSteps(network, optimizer, config, generator), network, config)
        except Exception as error:  # numba raises many kinds
            give_up_compiling(error)
    n_chunks = chunks_of_gradient(policy, config)
    if n_chunks > 1:
        sharing = None if ranks.size == 1 else ChunkSharing(ranks, device=policy.device)
        chunked = ChunkedGradients(network, optimizer.gradient, n_chunks=n_chunks, sharing=sharing)
        return TorchSteps(chunked, optimizer, config, generator, check=ranks.check)
    # With numba, this still serves squashed actions, actions of several parts, and large perceptrons. By autograd,
    # learning takes 1.9 times as long with squashed actions, 1.7 with a MultiDiscrete, and 1.8 with CartPole without
    # numba; whole trainings take 1.5, 1.4 and 1.5 times as long (8 environments, two layers of 64; medians of 5
    # alternating runs). With two layers of 512, both are equally fast. The last bits of the weights differ from those
    # by autograd in 7 of 8 such runs.
    if isinstance(network, ActorCritic) and network.is_paired and policy.device.type == "cpu":
        steps = TorchSteps(ClosedFormGradients(network), optimizer, config, generator, check=ranks.check)
        return CheckedSteps(steps, network, config)
    return TorchSteps(AutogradGradients(network), optimizer, config, generator, check=ranks.check)


def chunks_of_gradient(policy: Policy, config: PPOConfig) -> int:
    """The number of chunks in which a gradient is computed; 1 with the compiled kernel."""
    network = policy.network
    if policy.device.type == "cpu" and can_compile(network):
        return 1
    if config.gradient_chunks is not None:
        return config.gradient_chunks
    n_weights = sum(weight.numel() for weight in network.parameters())
    n_chunks = _chunks_that_pay(policy, n_weights * config.minibatch_size)
    if isinstance(network, GeneralActorCritic) and network.sees_images:
        return max(1, min(n_chunks, config.minibatch_size // _IMAGES_IN_CHUNK))
    return n_chunks


class CheckedSteps:
    """Fast steps that are compared with autograd once, on the first minibatch of the first update.

    If the gradients differ by more than rounding, this warns and takes all steps by autograd.
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
        # Ratios are 1 up to rounding, and rounding must not decide what is clipped.
        weights = weights._replace(clip_range=max(weights.clip_range, 0.01))
        if agrees_with_autograd(self._steps, self._network, minibatch, weights):
            return
        warnings.warn(
            f"The {self._steps.kind} gradient of this network differs from autograd's. Training continues with "
            "autograd, which is slower; please report this, with the sizes of the network and the versions of torch "
            "and numba.",
            stacklevel=2,
        )
        gradients = AutogradGradients(self._network)
        self._steps = TorchSteps(gradients, self._steps.optimizer, self._config, self._steps.generator)


def agrees_with_autograd(
    steps: GradientSteps, network: ActorCritic | GeneralActorCritic, minibatch: Minibatch, weights: LossWeights
) -> bool:
    """Whether the gradient for a minibatch equals autograd's up to rounding.

    Also True if autograd's gradient is not finite; the update reports that.
    """
    found = steps.gradient(minibatch, weights)
    AutogradGradients(network)(minibatch, weights)
    expected = steps.optimizer.gradient
    distance, norm = (found - expected).norm().item(), expected.norm().item()
    return not math.isfinite(norm) or distance <= _AGREEMENT * norm + _NEGLIGIBLE


def _chunks_that_pay(policy: Policy, work: int) -> int:
    """The number of chunks that cost little more than the whole gradient, so that threads gain time.

    work: weights times samples of a minibatch. Only the size decides, so that all machines compute the same bits.
    """
    if policy.device.type != "cpu":
        return 1
    return next((n_chunks for n_chunks, least in _WORTH_CHUNKS.items() if work >= least), 1)


def _optimizer_of(policy: Policy) -> FlatAdam:
    """Adam over all weights, which are moved into one vector."""
    flat = flatten_parameters(policy.network.parameter_order())
    assert flat.grad is not None
    policy.refresh()
    return FlatAdam(flat, flat.grad, epsilon=_ADAM_EPSILON)
