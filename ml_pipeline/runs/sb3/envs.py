"""What an algorithm of Stable-Baselines3 sees of environments: a `VecEnv` over `ParallelEnv`, or their spaces alone."""

import copy
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from ml_pipeline.integrations.sb3 import SB3ParallelEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv


class WatchedEnvs(SB3ParallelEnv):
    """A `ParallelEnv` that remembers the last step's rewards and ends, and the time that stepping took.

    last_rewards: float32 (N,), as the environments gave them. last_dones: bool (N,). stepping_s: with waiting.
    """

    def __init__(self, envs: ParallelEnv) -> None:
        super().__init__(envs)
        # Random actions are drawn from it: not from that of an environment in this process, which may draw as well.
        self.action_space = copy.deepcopy(self.action_space)
        self.stepping_s = 0.0
        self.last_rewards = np.zeros(self.num_envs, np.float32)
        self.last_dones = np.zeros(self.num_envs, np.bool_)

    def step_async(self, actions: np.ndarray) -> None:
        began = time.perf_counter()
        super().step_async(actions)
        self.stepping_s += time.perf_counter() - began

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        began = time.perf_counter()
        observations, rewards, dones, infos = super().step_wait()
        self.stepping_s += time.perf_counter() - began
        self.last_rewards, self.last_dones = rewards.copy(), dones
        return observations, rewards, dones, infos

    def close(self) -> None:
        """Does nothing: who made the environments closes them."""


class SpacesAlone(VecEnv):
    """One environment that has spaces and can do nothing: to make a model that only acts."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        super().__init__(1, observation_space, action_space)

    def reset(self) -> NoReturn:
        raise NotImplementedError

    def step_async(self, actions: np.ndarray) -> NoReturn:
        raise NotImplementedError

    def step_wait(self) -> NoReturn:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """None of any attribute, which Stable-Baselines3 looks for."""
        return [None]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> NoReturn:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Any = None) -> list[bool]:
        return [False]

    def get_images(self) -> Sequence[np.ndarray | None]:
        return [None]
