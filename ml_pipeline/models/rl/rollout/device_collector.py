"""Collecting a rollout on the device of the environments and the policy.

During a rollout the host launches kernels and never waits for a result. The host holds the statistics in float64; the
device holds those of the current rollout in float32. At the end of a rollout the host merges them, so that a long run
loses no precision. T steps, N environments, D observation size, S state size, P parameters of the distribution, K
choices or numbers of an action.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.distributions import DiagonalGaussian, choices_of
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.normalization import (
    CLIP,
    EPSILON,
    Moments,
    ObservationNormalizer,
    RunningMoments,
    merged,
)
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace
from ml_pipeline.models.rl.rollout.buffer import DeviceBuffer
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.estimates import Estimates, check_device_rollout, estimate_on_device
from ml_pipeline.models.rl.transitions import Sequences
from ml_pipeline.runtime.seeding import random_generator


class DeviceCollector(Collector):
    """`HostCollector` for environments that take and return tensors. Results are equal up to rounding.

    Environments and policy have the same `device`. In every step that may end an episode, the environments return
    infos["final_obs"], a tensor (N, D). Rewards are fetched, and episodes counted, at the end of a rollout.
    `stepping_s` is the time for launching the kernels of the environments, not the time that the device takes.
    """

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> None:
        """Raises UserError if policy and environments are on different devices, or the spaces need the host."""
        _check_fitting(envs, policy)
        super().__init__(envs, policy, config, seed=seed)
        device = policy.device
        self._data = f"tensors on {device.type}"
        self._actions = device_actions(policy)
        stored = self._actions.empty(config.n_steps, envs.num_envs)
        self.buffer = DeviceBuffer(config.n_steps, envs.num_envs, policy.observations.size, actions=stored)
        normalizer = policy.observations.normalizer
        self._normalizer = None if normalizer is None else DeviceNormalizer(normalizer, device)
        self._reward_scaler = (
            DeviceRewardScaler(envs.num_envs, gamma=config.gamma, device=device) if config.normalize_rewards else None
        )
        state_size = 0 if isinstance(policy.network, ActorCritic) else policy.network.state_size
        self._memory = torch.zeros(envs.num_envs, state_size, device=device) if state_size else None
        self._no_starts = torch.zeros(1, envs.num_envs, dtype=torch.bool, device=device)
        self._generator = device_generator(seed, "actions", device)

    @torch.no_grad()
    def collect(self, *, should_stop: Callable[[], bool]) -> bool:
        full = super().collect(should_stop=should_stop)
        if full:
            self._fetch_rollout()
        return full

    def estimates(self) -> Estimates:
        check_device_rollout(self.buffer)
        return estimate_on_device(self.buffer, self._policy, **self._estimation)

    def _own_state(self) -> dict[str, Any]:
        return {
            "normalizer": None if self._normalizer is None else self._normalizer.moments.state_dict(),
            "memory": None if self._memory is None else self._memory.cpu().clone(),
            "generator": self._generator.get_state(),
        }

    def _load_own_state(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        if self._normalizer is not None:
            self._normalizer.moments.load_state_dict(state["normalizer"])
        self._generator.set_state(state["generator"])
        if environments_restored and self._memory is not None:
            self._memory = state["memory"].to(self._policy.device)

    def _begin(self) -> None:
        for part in (self._normalizer, self._reward_scaler):
            if part is not None:
                part.moments.begin()
        self._reset_where_needed()
        noise = self._actions.draw_noise(self._generator, (self._n_draws, self._envs.num_envs))
        self.buffer.start(noise, self._memory)

    def _step(self) -> None:
        buffer = self.buffer
        assert buffer.noise is not None
        t = buffer.position
        noise = buffer.noise[t // self._steps_per_noise]
        actions = self._actions.sample(self._parameters(buffer.observations[t]), noise)
        observations, rewards, terminated, truncated, infos = self._step_envs(self._actions.fit(actions))
        done = terminated | truncated
        if self._memory is not None:
            self._memory = torch.where(done[:, None], 0.0, self._memory)
        next_observations = self._learn_and_normalize(observations)
        buffer.store(
            actions=actions,
            rewards=rewards,
            scaled_rewards=rewards if self._reward_scaler is None else self._reward_scaler(rewards, done),
            terminated=terminated,
            truncated=truncated,
            finite=observations.isfinite().all(dim=1) & rewards.isfinite(),
            final_observations=self._normalized(infos["final_obs"]) if "final_obs" in infos else next_observations,
            next_observations=next_observations,
        )

    def _parameters(self, observations: Tensor) -> Tensor:
        """The distribution parameters, (N, P); also advances the memory of a recurrent policy."""
        network = self._policy.network
        if isinstance(network, ActorCritic):
            return network.actor(observations)
        if self._memory is None:
            return network.parameters_of(observations)
        parameters, _, states = network.over_sequences(observations, Sequences(self._no_starts, self._memory))
        self._memory = states[0]
        return parameters

    def _fetch_rollout(self) -> None:
        """Fetch the statistics, the rewards and the ends of episodes of a full rollout, in a few transfers."""
        for part in (self._normalizer, self._reward_scaler):
            if part is not None:
                part.moments.merge_into_known()
        buffer, num_envs = self.buffer, self._envs.num_envs
        ends = (buffer.terminated | buffer.truncated).cpu().numpy()
        before = self.global_step - buffer.n_steps * num_envs
        times = np.full(buffer.n_steps, self._elapsed_s())
        self.episodes.count(buffer.rewards.cpu().numpy(), ends, global_step=before, times=times)

    def _store_first(self, observations: Tensor, first: int) -> None:
        if self._normalizer is not None:
            self._normalizer.moments.begin()  # the statistics of the last rollout are merged already
        super()._store_first(observations, first)
        if self._normalizer is not None:
            self._normalizer.moments.merge_into_known()

    def _learn_and_normalize(self, observations: Tensor, first: int = 0) -> Tensor:
        observations = observations[first:] if first else observations
        if self._normalizer is not None:
            self._normalizer.moments.update(observations)
        return self._normalized(observations)

    def _normalized(self, observations: Tensor) -> Tensor:
        return observations if self._normalizer is None else self._normalizer(observations)


def _check_fitting(envs: Any, policy: Policy) -> None:
    if torch.device(envs.device).type != policy.device.type:
        raise UserError(
            f"The environments give tensors on {envs.device}, but the policy is on {policy.device}; create both on the "
            "same device."
        )
    space = policy.observation_space
    if not policy.observations.layout.is_plain or space.shape is None or len(space.shape) != 1:
        raise UserError(
            f"Environments with a device must have a one-dimensional Box of numbers as observations, but have {space}."
        )


def device_generator(seed: int, purpose: str, device: torch.device) -> torch.Generator:
    """`random_generator` for a device. Its numbers differ from those of NumPy, and between kinds of devices.

    >>> cpu = torch.device("cpu")
    >>> first, again = (torch.rand(2, generator=device_generator(3, "actions", cpu)) for _ in range(2))
    >>> torch.equal(first, again)
    True
    """
    return torch.Generator(device).manual_seed(int(random_generator(seed, purpose).integers(2**63 - 1)))


class DeviceMoments:
    """`mean` and `variance`, float32 (size,), of `known` together with all batches since `begin`."""

    def __init__(self, known: RunningMoments, device: torch.device) -> None:
        self._known = known
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Start from `known` in its present state, without any batch."""
        mean, variance = (
            torch.as_tensor(array, dtype=torch.float32).to(self._device)
            for array in (self._known.mean, self._known.variance)
        )
        self._base = Moments(mean, variance, self._known.count)
        self._new = Moments(torch.zeros_like(mean), torch.zeros_like(mean), 0)
        self.mean, self.variance = mean, variance

    def update(self, batch: Tensor) -> None:
        """Merge a batch, float32 (B, size)."""
        variance, mean = torch.var_mean(batch, dim=0, correction=0)
        self._new = merged(self._new, mean, variance * len(batch), len(batch))
        self._join()

    def merge_into_known(self) -> None:
        """Fetch the statistics since `begin` from the device and merge them into `known`."""
        mean, variance = torch.stack(self._new[:2]).cpu().double().numpy()
        self._known.merge(mean, variance * self._new.n, self._new.n)

    def state_dict(self) -> dict[str, Any]:
        mean, variance, count = self._new
        return {"mean": mean.cpu().clone(), "variance": variance.cpu().clone(), "count": count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `known` in its present state, with the batches of `state`."""
        self.begin()
        if state["count"]:
            self._new = Moments(state["mean"].to(self._device), state["variance"].to(self._device), state["count"])
            self._join()

    def _join(self) -> None:
        new = self._new
        self.mean, self.variance, _ = merged(self._base, new.mean, new.variance * new.n, new.n)


class DeviceNormalizer:
    """`ObservationNormalizer` for all components, on a device."""

    def __init__(self, normalizer: ObservationNormalizer, device: torch.device) -> None:
        self.moments = DeviceMoments(normalizer.moments, device)
        self._clip = normalizer.clip

    def __call__(self, observations: Tensor) -> Tensor:
        """Float32 (..., D) in, a new float32 (..., D) out."""
        scale = (self.moments.variance + EPSILON).rsqrt()
        return ((observations - self.moments.mean) * scale).clamp_(-self._clip, self._clip)


class DeviceRewardScaler:
    """`RewardScaler` on a device."""

    def __init__(self, num_envs: int, *, gamma: float, device: torch.device) -> None:
        self._known = RunningMoments(1)
        self.moments = DeviceMoments(self._known, device)
        self._returns = torch.zeros(num_envs, device=device)
        self._gamma = gamma

    def __call__(self, rewards: Tensor, done: Tensor) -> Tensor:
        """Update the statistics with the rewards of one step, float32 (N,), and return them scaled; done: bool (N,)."""
        returns = self._returns * self._gamma + rewards
        self.moments.update(returns[:, None])
        self._returns = torch.where(done, 0.0, returns)
        return (rewards / (self.moments.variance + EPSILON).sqrt()).clamp_(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        return {
            "known": self._known.state_dict(),
            "moments": self.moments.state_dict(),
            "returns": self._returns.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known.load_state_dict(state["known"])
        self.moments.load_state_dict(state["moments"])
        self._returns = state["returns"].to(self._returns.device)


class DeviceActions(Protocol):
    """Samples actions on a device; the same noise gives the actions of the policy's distribution, up to rounding."""

    def empty(self, *shape: int) -> Tensor:
        """Zeros with the shape and dtype of actions, (*shape, ...)."""

    def draw_noise(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Noise for `sample`, float32 (*shape, ...), on the device of the generator."""

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Actions (N, ...) in the form that an update expects, for parameters (N, P)."""

    def fit(self, actions: Tensor) -> Tensor:
        """The actions in the form that the environments expect."""


def device_actions(policy: Policy) -> DeviceActions:
    """`DeviceActions` for the action space and device of the policy.

    Raises UnsupportedSpace if such actions can only be sampled on the host.
    """
    space = policy.action_space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _Choices(space, policy.device)
    if isinstance(space, spaces.Box):
        return _Numbers(space, policy)
    raise UnsupportedSpace(
        f"On a device, actions must be Box, Discrete or MultiDiscrete, but the action space is {space}; use "
        "environments that take arrays."
    )


class _Choices:
    """One choice, int64 (N,), or K choices, float32 (N, K), as in `Categorical` and `Joint`."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete, device: torch.device) -> None:
        self._single = isinstance(space, spaces.Discrete)
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec.ravel()]
        self._counts = counts
        self._starts = torch.as_tensor(np.ravel(space.start), device=device)
        self._shape: tuple[int, ...] = space.shape or ()
        self._device = device

    def empty(self, *shape: int) -> Tensor:
        if self._single:
            return torch.zeros(shape, dtype=torch.int64, device=self._device)
        return torch.zeros((*shape, len(self._counts)), device=self._device)

    def draw_noise(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        columns = () if self._single else (len(self._counts),)
        return torch.rand((*shape, *columns), generator=generator, device=generator.device)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        if self._single:
            return _drawn(parameters, noise)
        logits = parameters.split(self._counts, dim=1)
        choices = [_drawn(own, drawn) for own, drawn in zip(logits, noise.unbind(1), strict=True)]
        return torch.stack(choices, dim=1).to(torch.float32)

    def fit(self, actions: Tensor) -> Tensor:
        return (actions.long().reshape(len(actions), -1) + self._starts).reshape(-1, *self._shape)


class _Numbers:
    """Gaussian numbers, float32 (N, K), clipped or squashed for the environments."""

    def __init__(self, space: spaces.Box, policy: Policy) -> None:
        assert isinstance(policy.distribution, DiagonalGaussian)
        self._distribution = policy.distribution
        self._low, self._high = (
            torch.as_tensor(bound.astype(np.float32).ravel()).to(policy.device) for bound in (space.low, space.high)
        )
        self._squashes = policy.squashes_actions
        self._shape = space.shape

    def empty(self, *shape: int) -> Tensor:
        return torch.zeros((*shape, len(self._low)), device=self._low.device)

    def draw_noise(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        columns = self._distribution.log_std.shape
        return torch.randn((*shape, *columns), generator=generator, device=generator.device)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return self._distribution.explored(parameters, noise, self._distribution.log_std.detach().exp())

    def fit(self, actions: Tensor) -> Tensor:
        low, high = self._low, self._high
        if self._squashes:
            actions = (low + high) / 2 + (high - low) / 2 * torch.tanh(actions)
        return actions.clamp(low, high).reshape(-1, *self._shape)


def _drawn(logits: Tensor, noise: Tensor) -> Tensor:
    """`Categorical.sample` on a device, whose noise may be 1; the last choice is then taken."""
    weights = torch.exp(logits - logits.amax(dim=1, keepdim=True))
    return choices_of(weights.cumsum(dim=1), noise).clamp_(max=logits.shape[1] - 1)
