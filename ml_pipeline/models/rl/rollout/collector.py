"""What all collecting of rollouts has in common, be it with arrays on the host or with tensors on a device."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.episodes import EpisodeTracker
from ml_pipeline.models.rl.rollout.estimates import Estimates


class Collector(ABC):
    """Steps environments with a policy until a buffer is full: act, step, normalize, store.

    Everything that must survive an interruption is in `state_dict`. Subclasses make the three parts below, and say how
    to begin a rollout, take a step and estimate.
    """

    buffer: Any
    _data: str
    """What environments give: arrays, or tensors on a device."""
    _reward_scaler: Any
    """None where rewards stay as they are."""

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> None:
        """Raises UserError where the policy was made for other spaces."""
        policy.check_spaces(envs.single_observation_space, envs.single_action_space)
        self._envs: Any = envs
        self.episodes = EpisodeTracker(envs.num_envs)
        self.global_step = 0
        self.stepping_s = 0.0  # in the environments' step(), all in all
        self._policy = policy
        self._discounts = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
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

    @property
    def rollout_start_step(self) -> int:
        """`global_step` at the start of the rollout under way; between two rollouts, of the next one."""
        return self.global_step - (0 if self.buffer.full else self.buffer.position * self._envs.num_envs)

    @abstractmethod
    def estimates(self) -> Estimates:
        """What an update learns from, of a full buffer. Raises TrainingFailed where something in it is not finite."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "data": self._data,
            "buffer": self.buffer.state_dict(),
            "episodes": self.episodes.state_dict(),
            "global_step": self.global_step,
            "reward_scaler": None if self._reward_scaler is None else self._reward_scaler.state_dict(),
            "elapsed_s": self._elapsed_s(),
            "reset_done": self._reset_done,
            **self._own_state(),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UserError where `state` is of a rollout of another kind."""
        noise = state["buffer"].get("noise")
        n_steps = self.buffer.n_steps
        here = {
            "observations as": (state["data"], self._data),
            "num_envs": (len(state["episodes"]["returns"]), self._envs.num_envs),
            "n_steps": (n_steps if noise is None else len(noise), n_steps),
            "normalize_rewards": (state["reward_scaler"] is not None, self._reward_scaler is not None),
        }
        for what, (saved, ours) in here.items():
            if saved != ours:
                raise UserError(
                    f"The checkpoint was made with {what} {saved}, but here it is {ours}; go on with {saved}, or train "
                    "anew."
                )

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Go on where `state` was taken; environments that could not be restored begin new episodes instead."""
        self.episodes.load_state_dict(state["episodes"], running=environments_restored)
        self.global_step = state["global_step"]
        if self._reward_scaler is not None:
            self._reward_scaler.load_state_dict(state["reward_scaler"])
        self._elapsed_before_s = state["elapsed_s"]
        self._reset_done = environments_restored and state["reset_done"]
        self._load_own_state(state, environments_restored=environments_restored)
        if environments_restored:
            self.buffer.load_state_dict(state["buffer"])

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What a subclass adds to `state_dict`."""

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Take it over again."""

    @abstractmethod
    def _begin(self) -> None:
        """Start the buffer on the observations that the last rollout ended with."""

    @abstractmethod
    def _step(self) -> None:
        """Act in all environments once, by `_step_envs`, and store what comes of it."""

    @abstractmethod
    def _learn_and_normalize(self, observations: Any) -> Any:
        """Let the running statistics see new observations, and bring them to what the network wants, (N, D)."""

    def _reset_where_needed(self) -> None:
        if not self._reset_done:
            # After a resume without saved environments, other episodes than those already seen.
            observations, _ = self._envs.reset(seed=self._seed + self.global_step)
            self.buffer.observations[self.buffer.position] = self._learn_and_normalize(observations)
            self._reset_done = True

    def _step_envs(self, actions: Any) -> Any:
        began = time.perf_counter()
        result = self._envs.step(actions)
        self.stepping_s += time.perf_counter() - began
        self.global_step += self._envs.num_envs
        return result

    def _elapsed_s(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._started_at
