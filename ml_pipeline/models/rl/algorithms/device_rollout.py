"""Collecting a rollout without leaving the device that the environments and the policy are on.

While it goes on, the host is told nothing: it hands over kernels and never waits for one. T steps, N environments,
D observation size, S state size.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.alarms import check_device_rollout
from ml_pipeline.models.rl.algorithms.estimates import Estimates, estimate_on_device
from ml_pipeline.models.rl.core.device_buffer import DeviceBuffer
from ml_pipeline.models.rl.core.device_normalization import DeviceNormalizer, DeviceRewardScaler
from ml_pipeline.models.rl.core.device_seeding import device_generator
from ml_pipeline.models.rl.core.episodes import EpisodeTracker
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.device_actions import device_actions
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.networks.policy import Policy


class DeviceCollector:
    """`RolloutCollector` for environments that take and give tensors; its results are the same to rounding.

    The environments' `device` is the policy's. They give infos["final_obs"], a tensor (N, D), at every step that may
    have ended an episode. Rewards are fetched when a rollout is over, and episodes are counted then.
    `stepping_s` is the time in which the environments' work is handed over, not the time that it takes the device.
    """

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> None:
        """Raises UserError where policy and environments are on different devices, or the spaces need the host."""
        _check_fitting(envs, policy)
        device = policy.device
        self.envs: Any = envs
        self._actions = device_actions(policy)
        stored = self._actions.empty(config.n_steps, envs.num_envs)
        self.buffer = DeviceBuffer(config.n_steps, envs.num_envs, policy.observation_size, actions=stored)
        self.episodes = EpisodeTracker(envs.num_envs)
        self.global_step = 0
        self.stepping_s = 0.0
        self._policy = policy
        self._discounts = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
        self._normalizer = None if policy.normalizer is None else DeviceNormalizer(policy.normalizer, device)
        self._reward_scaler = (
            DeviceRewardScaler(envs.num_envs, gamma=config.gamma, device=device) if config.normalize_rewards else None
        )
        state_size = 0 if isinstance(policy.network, ActorCritic) else policy.network.state_size
        self._memory = torch.zeros(envs.num_envs, state_size, device=device) if state_size else None
        self._no_starts = torch.zeros(1, envs.num_envs, dtype=torch.bool, device=device)
        self._generator = device_generator(seed, "actions", device)
        self._seed = seed
        self._reset_done = False
        self._elapsed_before_s = 0.0
        self._started_at = time.perf_counter()

    @torch.no_grad()
    def collect(self, *, should_stop: Callable[[], bool]) -> bool:
        """Fill the buffer; return whether it is full. `should_stop` is asked before each step.

        A rollout that was stopped is gone on with by the next call.
        """
        if self.buffer.full:
            self._begin()
        while not self.buffer.full:
            if should_stop():
                return False
            self._step()
        self._settle()
        return True

    def estimates(self) -> Estimates:
        """What an update learns from, of a full buffer. Raises TrainingFailed where something in it is not finite."""
        check_device_rollout(self.buffer)
        return estimate_on_device(self.buffer, self._policy, **self._discounts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tensors": self._policy.device.type,
            "buffer": self.buffer.state_dict(),
            "episodes": self.episodes.state_dict(),
            "global_step": self.global_step,
            "normalizer": None if self._normalizer is None else self._normalizer.moments.state_dict(),
            "reward_scaler": None if self._reward_scaler is None else self._reward_scaler.state_dict(),
            "memory": None if self._memory is None else self._memory.cpu().clone(),
            "generator": self._generator.get_state(),
            "elapsed_s": self._elapsed_s(),
            "reset_done": self._reset_done,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UserError where `state` is of a rollout of another kind."""
        num_envs, size = state["buffer"]["observations"].shape[-2:] if "tensors" in state else (0, 0)
        here = {
            "tensors on": (state.get("tensors", "the host, as arrays"), self._policy.device.type),
            "num_envs": (num_envs, self.envs.num_envs),
            "numbers in an observation": (size, self._policy.observation_size),
            "normalize_rewards": (state["reward_scaler"] is not None, self._reward_scaler is not None),
        }
        for what, (saved, ours) in here.items():
            if saved != ours:
                raise UserError(f"The checkpoint was made with {what} {saved}, but here it is {ours}.")
        noise = state["buffer"].get("noise")
        if noise is not None and len(noise) != self.buffer.n_steps:
            raise UserError(
                f"The checkpoint was made in a rollout of {len(noise)} steps, but here n_steps is "
                f"{self.buffer.n_steps}."
            )

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Go on where `state` was taken; environments that could not be restored begin new episodes instead."""
        self.episodes.load_state_dict(state["episodes"], running=environments_restored)
        self.global_step = state["global_step"]
        if self._normalizer is not None:
            self._normalizer.moments.load_state_dict(state["normalizer"])
        if self._reward_scaler is not None:
            self._reward_scaler.load_state_dict(state["reward_scaler"])
        self._generator.set_state(state["generator"])
        self._elapsed_before_s = state["elapsed_s"]
        self._reset_done = environments_restored and state["reset_done"]
        if environments_restored:
            if self._memory is not None:
                self._memory = state["memory"].to(self._policy.device)
            self.buffer.load_state_dict(state["buffer"])

    def _begin(self) -> None:
        for part in (self._normalizer, self._reward_scaler):
            if part is not None:
                part.moments.begin()
        if not self._reset_done:
            # After a resume without saved environments, other episodes than those already seen.
            observations, _ = self.envs.reset(seed=self._seed + self.global_step)
            self.buffer.observations[self.buffer.position] = self._learn_and_normalize(observations)
            self._reset_done = True
        noise = self._actions.draw_noise(self._generator, (self.buffer.n_steps, self.envs.num_envs))
        self.buffer.start(noise, self._memory)

    def _step(self) -> None:
        buffer = self.buffer
        assert buffer.noise is not None
        t = buffer.position
        actions = self._actions.sample(self._parameters(buffer.observations[t]), buffer.noise[t])
        fitting = self._actions.fit(actions)
        began = time.perf_counter()
        observations, rewards, terminated, truncated, infos = self.envs.step(fitting)
        self.stepping_s += time.perf_counter() - began
        done = terminated | truncated
        if self._memory is not None:
            self._memory = torch.where(done[:, None], 0.0, self._memory)
        self.global_step += self.envs.num_envs
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
        """What the distribution is given to draw from, (N, P); a policy with memory remembers the observations."""
        network = self._policy.network
        if isinstance(network, ActorCritic):
            return network.actor(observations)
        if self._memory is None:
            return network.parameters_of(observations)
        parameters, _, states = network.over_sequences(observations, Sequences(self._no_starts, self._memory))
        self._memory = states[0]
        return parameters

    def _settle(self) -> None:
        """When a rollout is over: fetch what the host keeps of it, in a few pieces."""
        for part in (self._normalizer, self._reward_scaler):
            if part is not None:
                part.moments.settle()
        buffer, num_envs = self.buffer, self.envs.num_envs
        ends = (buffer.terminated | buffer.truncated).cpu().numpy()
        before = self.global_step - buffer.n_steps * num_envs
        for t, (rewards, done) in enumerate(zip(buffer.rewards.cpu().numpy(), ends, strict=True), start=1):
            self.episodes.step(rewards, done, global_step=before + t * num_envs, elapsed_s=self._elapsed_s)

    def _learn_and_normalize(self, observations: Tensor) -> Tensor:
        if self._normalizer is not None:
            self._normalizer.moments.update(observations)
        return self._normalized(observations)

    def _normalized(self, observations: Tensor) -> Tensor:
        return observations if self._normalizer is None else self._normalizer(observations)

    def _elapsed_s(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._started_at


def _check_fitting(envs: Any, policy: Policy) -> None:
    if torch.device(envs.device).type != policy.device.type:
        raise UserError(
            f"The environments give tensors on {envs.device}, but the policy is on {policy.device}; make both for one "
            "device."
        )
    space = policy.observation_space
    if not policy.layout.is_plain or space.shape is None or len(space.shape) != 1:
        raise UserError(f"Environments of tensors give rows of numbers, but these observations are {space}.")
