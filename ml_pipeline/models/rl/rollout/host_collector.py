"""Collecting rollouts with arrays on the host: by one process, and what several ranks have in common with it.

T steps, N environments, D observation size.
"""

import math
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.compiled_networks import compile_if_possible
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.normalization import RewardScaler
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.estimates import Estimates, check_observations, check_rollout, estimate
from ml_pipeline.runtime.seeding import generator_state, random_generator, restore_generator

Array = np.ndarray


class ArrayCollector(Collector):
    """Collects arrays, from environments of any kind; the policy is called with arrays, wherever it lives.

    The noise of all N environments is drawn at the start of a rollout. Subclasses make `buffer` and take the steps.
    """

    def __init__(
        self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, num_envs: int | None = None
    ) -> None:
        """See Collector."""
        super().__init__(envs, policy, config, seed=seed, num_envs=num_envs)
        self._data = "arrays"
        size, dtype = policy.observations.size, policy.observations.dtype
        self._whole = RolloutBuffer(config.n_steps, self.num_envs, size, dtype=dtype)  # of all N environments
        policy.compile()
        self._reward_scaler = RewardScaler(self.num_envs, gamma=config.gamma) if config.normalize_rewards else None
        if self._reward_scaler is not None:
            compile_if_possible(self._reward_scaler.compile)
        self._memory = policy.new_rollout_memory(envs.num_envs)
        self._noise_generator = random_generator(seed, "actions")

    def estimates(self) -> Estimates:
        check_rollout(self._whole)
        return estimate(self._whole, self._policy, **self._estimation)

    def _count(self, first: int, *, global_step: int, rewards: Array, times: Array) -> None:
        """Count episodes and scale rewards of the whole rollout, from step `first` on as far as it is filled.

        global_step: before these steps. rewards: float64 (T, N), as the environments gave them. times: float64 (T,),
        when each step was done, in s of training.
        """
        whole = self._whole
        steps = slice(first, whole.position)
        given, done = rewards[steps], whole.terminated[steps] | whole.truncated[steps]
        self.episodes.count(given, done, global_step=global_step, times=times[steps])
        whole.rewards[steps] = given if self._reward_scaler is None else self._reward_scaler(given, done)

    def _own_state(self) -> dict[str, Any]:
        return {
            "memory": None if self._memory is None else torch.from_numpy(self._memory.state.copy()),
            "noise_generator": generator_state(self._noise_generator),
        }

    def _load_own_state(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        restore_generator(self._noise_generator, state["noise_generator"])
        if environments_restored and self._memory is not None:
            self._memory.state = state["memory"].numpy()

    def _begin(self) -> None:
        self._reset_where_needed()
        shape = (self.buffer.n_steps, self.num_envs)
        noise = self._policy.distribution.draw_noise(self._noise_generator, shape)
        self.buffer.start(noise, None if self._memory is None else self._memory.state)


class HostCollector(ArrayCollector):
    """Collects in one process, which steps all environments; statistics learn from each step."""

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> None:
        """See Collector."""
        super().__init__(envs, policy, config, seed=seed)
        self.buffer = self._whole
        self._rewards = np.zeros(self.buffer.rewards.shape)  # (T, N), as the environments gave them
        self._times = np.zeros(config.n_steps)  # (T,), when each step was done, in s of training

    def _step(self) -> None:
        buffer, policy = self.buffer, self._policy
        assert buffer.noise is not None
        t = buffer.position
        actions, outputs = policy.choose_and_value(buffer.observations[t], buffer.noise[t], self._memory)
        observations, rewards, terminated, truncated, infos = self._step_envs(policy.fit_actions(actions))
        if self._memory is not None:
            self._memory.forget(terminated | truncated)
        next_obs = self._learn_and_normalize(observations)
        if np.count_nonzero(truncated):  # 0.1 us, where the line below takes 0.8
            for i in (truncated & ~terminated).nonzero()[0].tolist():
                final_observation = policy.observations.process_one(infos["final_obs"][i])[0]
                buffer.final_observations.append((t, i, final_observation))
        self._rewards[t], self._times[t] = rewards, self._elapsed_s()
        buffer.store(actions, rewards, terminated, truncated, next_obs, outputs=outputs)

    def _count_steps(self, first: int, global_step: int) -> None:
        self._count(first, global_step=global_step, rewards=self._rewards, times=self._times)

    def _learn_and_normalize(self, observations: Any, first: int = 0) -> Array:
        preprocessor = self._policy.observations
        encoded = preprocessor.encode(observations)
        if first:
            encoded = encoded[first:]
        if preprocessor.normalizer is None:
            return encoded
        normalized = preprocessor.normalizer.learn_and_normalize(encoded)
        means = preprocessor.normalizer.moments.mean
        if not math.isfinite(means.dot(means)):  # 0.2 us, where their sum takes 1.5
            # A NaN in the statistics makes every environment's numbers NaN; only now is the first one known.
            check_observations(encoded, step=0 if self.buffer.full else self.buffer.position + 1, first=first)
        return normalized
