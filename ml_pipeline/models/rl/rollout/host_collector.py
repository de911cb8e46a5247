"""Collecting a rollout with arrays on the host, in one process. T steps, N environments, D observation size."""

import math
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.array_collector import ArrayCollector
from ml_pipeline.models.rl.rollout.finite_checks import check_observations

Array = np.ndarray


class RolloutCollector(ArrayCollector):
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
