"""Collecting a rollout without leaving the device that the environments and the policy are on.

During a rollout the host launches kernels and never waits for a result. T steps, N environments, D observation size,
S state size.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.policies.device_actions import device_actions
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.device_normalization import DeviceNormalizer, DeviceRewardScaler
from ml_pipeline.models.rl.rollout.buffer import DeviceBuffer
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.estimates import Estimates, check_device_rollout, estimate_on_device
from ml_pipeline.models.rl.transitions import Sequences
from ml_pipeline.runtime.seeding import random_generator


class DeviceCollector(Collector):
    """`HostCollector` for environments that take and return tensors; its results are the same but for rounding.

    The environments' `device` is the policy's. They return infos["final_obs"], a tensor (N, D), in every step that may
    end an episode. Rewards are fetched, and episodes counted, at the end of a rollout. `stepping_s` is the time for
    launching the environments' kernels, not the time that the device takes.
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
        noise = self._actions.draw_noise(self._generator, (self.buffer.n_steps, self._envs.num_envs))
        self.buffer.start(noise, self._memory)

    def _step(self) -> None:
        buffer = self.buffer
        assert buffer.noise is not None
        t = buffer.position
        actions = self._actions.sample(self._parameters(buffer.observations[t]), buffer.noise[t])
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
        """The distribution's parameters, (N, P); the memory of a recurrent policy moves on."""
        network = self._policy.network
        if isinstance(network, ActorCritic):
            return network.actor(observations)
        if self._memory is None:
            return network.parameters_of(observations)
        parameters, _, states = network.over_sequences(observations, Sequences(self._no_starts, self._memory))
        self._memory = states[0]
        return parameters

    def _fetch_rollout(self) -> None:
        """Fetch the statistics, rewards and ends of episodes of a full rollout, in a few transfers."""
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
            self._normalizer.moments.begin()  # those of the rollout before are known already
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
            f"The environments give tensors on {envs.device}, but the policy is on {policy.device}; make both on the "
            "same device."
        )
    space = policy.observation_space
    if not policy.observations.layout.is_plain or space.shape is None or len(space.shape) != 1:
        raise UserError(
            f"Environments with a device must have a one-dimensional Box of numbers as observations, but have {space}."
        )


def device_generator(seed: int, purpose: str, device: torch.device) -> torch.Generator:
    """As `random_generator`, on a device; its numbers differ from that one's, and between kinds of devices.

    >>> cpu = torch.device("cpu")
    >>> first, again = (torch.rand(2, generator=device_generator(3, "actions", cpu)) for _ in range(2))
    >>> torch.equal(first, again)
    True
    """
    return torch.Generator(device).manual_seed(int(random_generator(seed, purpose).integers(2**63 - 1)))
