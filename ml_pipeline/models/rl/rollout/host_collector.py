"""Collecting a rollout with arrays on the host. T steps, N environments, D observation size."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.normalization import RewardScaler
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.estimates import Estimates, estimate
from ml_pipeline.models.rl.rollout.finite_checks import check_observations, check_rollout
from ml_pipeline.runtime.seeding import generator_state, random_generator, restore_generator

Array = np.ndarray


class RolloutCollector(Collector):
    """Collects arrays, from environments of any kind; the policy is called with arrays, wherever it lives."""

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> None:
        super().__init__(envs, policy, config, seed=seed)
        self._data = "arrays"
        self.buffer = RolloutBuffer(config.n_steps, envs.num_envs, policy.observations.size)
        policy.compile()
        self._reward_scaler = RewardScaler(envs.num_envs, gamma=config.gamma) if config.normalize_rewards else None
        self._memory = policy.new_memory(envs.num_envs)
        self._noise_generator = random_generator(seed, "actions")

    def estimates(self) -> Estimates:
        check_rollout(self.buffer)
        return estimate(self.buffer, self._policy, **self._discounts)

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
        shape = (self.buffer.n_steps, self._envs.num_envs)
        noise = self._policy.distribution.draw_noise(self._noise_generator, shape)
        self.buffer.start(noise, None if self._memory is None else self._memory.state)

    def _step(self) -> None:
        buffer, policy = self.buffer, self._policy
        assert buffer.noise is not None
        t = buffer.position
        actions = policy.choose(buffer.observations[t], buffer.noise[t], self._memory)
        observations, rewards, terminated, truncated, infos = self._step_envs(policy.fit_actions(actions))
        done = terminated | truncated
        if self._memory is not None:
            self._memory.forget(done)
        self.episodes.step(rewards, done, global_step=self.global_step, elapsed_s=self._elapsed_s)
        scaled = rewards if self._reward_scaler is None else self._reward_scaler(rewards, done)
        next_obs = self._learn_and_normalize(observations)
        for i in (truncated & ~terminated).nonzero()[0].tolist():
            final_observation = policy.observations.process_one(infos["final_obs"][i])[0]
            buffer.final_observations.append((t, i, final_observation))
        buffer.store(actions, scaled, terminated, truncated, next_obs)

    def _learn_and_normalize(self, observations: Any, first: int = 0) -> Array:
        preprocessor = self._policy.observations
        encoded = preprocessor.encode(observations)
        if first:
            encoded = encoded[first:]
        if preprocessor.normalizer is not None:
            preprocessor.normalizer.update(encoded)
            if not math.isfinite(preprocessor.normalizer.moments.mean.sum()):
                # A NaN in the statistics makes every environment's numbers NaN; only now is the first one known.
                check_observations(encoded, step=0 if self.buffer.full else self.buffer.position + 1, first=first)
        return preprocessor.normalize(encoded)
