"""Collecting a rollout: act, step, normalize, store. T steps, N environments, D observation size."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.alarms import check_observations, check_rollout
from ml_pipeline.models.rl.algorithms.estimates import Estimates, estimate
from ml_pipeline.models.rl.core.episodes import EpisodeTracker
from ml_pipeline.models.rl.core.normalization import RewardScaler
from ml_pipeline.models.rl.core.rollout_buffer import RolloutBuffer
from ml_pipeline.models.rl.core.seeding import generator_state, random_generator, restore_generator
from ml_pipeline.models.rl.networks.policy import Policy

Array = np.ndarray


class RolloutCollector:
    """Steps the environments with the policy; everything that must survive an interruption is in `state_dict`."""

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> None:
        self.envs = envs
        self.buffer = RolloutBuffer(config.n_steps, envs.num_envs, policy.observation_size)
        self.episodes = EpisodeTracker(envs.num_envs)
        self.global_step = 0
        self.stepping_s = 0.0  # in the environments' step(), all in all
        self._policy = policy
        self._discounts = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
        policy.compile()
        self._reward_scaler = RewardScaler(envs.num_envs, gamma=config.gamma) if config.normalize_rewards else None
        self._memory = policy.new_memory(envs.num_envs)
        self._noise_generator = random_generator(seed, "actions")
        self._seed = seed
        self._reset_done = False
        self._elapsed_before_s = 0.0
        self._started_at = time.perf_counter()

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
        return True

    def estimates(self) -> Estimates:
        """What an update learns from, of a full buffer. Raises TrainingFailed where something in it is not finite."""
        check_rollout(self.buffer)
        return estimate(self.buffer, self._policy, **self._discounts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "buffer": self.buffer.state_dict(),
            "episodes": self.episodes.state_dict(),
            "global_step": self.global_step,
            "reward_scaler": None if self._reward_scaler is None else self._reward_scaler.state_dict(),
            "memory": None if self._memory is None else torch.from_numpy(self._memory.state.copy()),
            "noise_generator": generator_state(self._noise_generator),
            "elapsed_s": self._elapsed_s(),
            "reset_done": self._reset_done,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UserError where `state` is of a rollout of another kind."""
        ours = self.state_dict()
        if "tensors" in state:
            raise UserError(
                "The checkpoint was made with environments of tensors, but these give arrays; go on with the same "
                "--vec-env and --device."
            )
        n_saved, n_here = (len(each["episodes"]["returns"]) for each in (state, ours))
        if n_saved != n_here:
            raise UserError(f"The checkpoint was made with {n_saved} environments, but here are {n_here}.")
        noise = state["buffer"]["noise"]
        if noise is not None and len(noise) != self.buffer.n_steps:
            raise UserError(
                f"The checkpoint was made in a rollout of {len(noise)} steps, but here n_steps is "
                f"{self.buffer.n_steps}."
            )
        saved, here = ("off" if each["reward_scaler"] is None else "on" for each in (state, ours))
        if saved != here:
            raise UserError(f"The checkpoint was made with normalize_rewards {saved}, but here it is {here}.")

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Go on where `state` was taken; environments that could not be restored begin new episodes instead."""
        self.episodes.load_state_dict(state["episodes"], running=environments_restored)
        self.global_step = state["global_step"]
        if self._reward_scaler is not None:
            self._reward_scaler.load_state_dict(state["reward_scaler"])
        restore_generator(self._noise_generator, state["noise_generator"])
        self._elapsed_before_s = state["elapsed_s"]
        self._reset_done = environments_restored and state["reset_done"]
        if environments_restored:
            if self._memory is not None:
                self._memory.state = state["memory"].numpy()
            self.buffer.load_state_dict(state["buffer"])

    def _begin(self) -> None:
        if not self._reset_done:
            # After a resume without saved environments, other episodes than those already seen.
            observations, _ = self.envs.reset(seed=self._seed + self.global_step)
            self.buffer.observations[self.buffer.position] = self._learn_and_normalize(observations)
            self._reset_done = True
        shape = (self.buffer.n_steps, self.envs.num_envs)
        noise = self._policy.distribution.draw_noise(self._noise_generator, shape)
        self.buffer.start(noise, None if self._memory is None else self._memory.state)

    def _step(self) -> None:
        buffer, policy = self.buffer, self._policy
        assert buffer.noise is not None
        t = buffer.position
        actions = policy.choose(buffer.observations[t], buffer.noise[t], self._memory)
        fitting = policy.fit_actions(actions)
        began = time.perf_counter()
        observations, rewards, terminated, truncated, infos = self.envs.step(fitting)
        self.stepping_s += time.perf_counter() - began
        done = terminated | truncated
        if self._memory is not None:
            self._memory.forget(done)
        self.global_step += self.envs.num_envs
        self.episodes.step(rewards, done, global_step=self.global_step, elapsed_s=self._elapsed_s)
        scaled = rewards if self._reward_scaler is None else self._reward_scaler(rewards, done)
        next_obs = self._learn_and_normalize(observations)
        for i in (truncated & ~terminated).nonzero()[0].tolist():
            buffer.final_observations.append((t, i, policy.normalize(policy.encode_one(infos["final_obs"][i]))[0]))
        buffer.store(actions, scaled, terminated, truncated, next_obs)

    def _learn_and_normalize(self, observations: Any) -> Array:
        encoded = self._policy.encode(observations)
        if self._policy.normalizer is not None:
            self._policy.normalizer.update(encoded)
            if not math.isfinite(self._policy.normalizer.moments.mean.sum()):
                # From now on all environments' numbers would be NaN: here it is still known whose it was.
                check_observations(encoded, step=0 if self.buffer.full else self.buffer.position + 1)
        return self._policy.normalize(encoded)

    def _elapsed_s(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._started_at
