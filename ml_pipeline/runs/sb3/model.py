"""Makes a Stable-Baselines3 model, and its view of the environments: a `VecEnv`, or only their spaces."""

import copy
import time
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ml_pipeline.config.algorithms import OWN, check_actions
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.integrations.sb3 import SB3ParallelEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.preprocessing.spaces import space_name
from ml_pipeline.runs.sb3.arguments import algorithm_class, constructor_arguments, is_on_policy
from ml_pipeline.runtime.acting import ACTION_MASK


class WatchedEnvs(SB3ParallelEnv):
    """A `ParallelEnv` that keeps the last step's rewards, dones and infos, and the time spent stepping.

    last_rewards: float32 (N,), not normalized. last_dones: bool (N,). last_infos: one for each of N environments.
    stepping_s: includes waiting.
    """

    def __init__(self, envs: ParallelEnv) -> None:
        super().__init__(envs)
        # Random actions use this copy: an environment in this process may sample from the original too.
        self.action_space = copy.deepcopy(self.action_space)
        self.stepping_s = 0.0
        self.last_rewards = np.zeros(self.num_envs, np.float32)
        self.last_dones = np.zeros(self.num_envs, np.bool_)
        self.last_infos: list[dict[str, Any]] = []

    def step_async(self, actions: np.ndarray) -> None:
        began = time.perf_counter()
        super().step_async(actions)
        self.stepping_s += time.perf_counter() - began

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        began = time.perf_counter()
        observations, rewards, dones, infos = super().step_wait()
        self.stepping_s += time.perf_counter() - began
        self.last_rewards, self.last_dones, self.last_infos = rewards.copy(), dones, infos
        return observations, rewards, dones, infos

    def close(self) -> None:
        """Does nothing: their creator closes the environments."""


class SpacesAlone(VecEnv):
    """One environment with spaces and no behavior, for a model that only acts."""

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
        """None for any attribute that Stable-Baselines3 looks for."""
        return [None]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> NoReturn:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Any = None) -> list[bool]:
        return [False]

    def get_images(self) -> Sequence[np.ndarray | None]:
        return [None]


def check_spaces(algorithm: str, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Raise UserError, naming the algorithms that fit, if this one does not support these spaces."""
    check_actions(algorithm, type(action_space).__name__, space_name(action_space))
    if isinstance(action_space, spaces.Discrete) and action_space.start != 0:
        raise UserError(
            f"{algorithm} needs actions that start at 0, but these start at {action_space.start}; train with {OWN}."
        )
    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    if ACTION_MASK in parts:
        raise UserError(f"{algorithm} has no action masks, but the environment has one; train with {OWN}, which does.")
    if isinstance(observation_space, spaces.Tuple) or any(
        isinstance(each, spaces.Dict | spaces.Tuple) for each in parts.values()
    ):
        raise UserError(
            f"{algorithm} takes no nested observations, but got {space_name(observation_space)}; train with {OWN}, "
            "which does."
        )


def make_model(run: RunConfig, ppo: PPOConfig, envs: VecEnv, *, device: str, only_acts: bool = False) -> Any:
    """The untrained model. Seeds the global random generators and draws from them.

    only_acts: no replay buffer. The algorithm's warnings are in the model's `said`, as sentences.
    Raises UserError if the algorithm rejects the settings or the spaces.
    """
    check_spaces(run.algorithm, envs.observation_space, envs.action_space)
    arguments = constructor_arguments(run, ppo)
    algorithm = algorithm_class(run.algorithm)
    if only_acts and not is_on_policy(algorithm):
        arguments["buffer_size"] = 1
    noise = arguments.pop("action_noise", None)
    if noise is not None:
        size = int(np.prod(envs.action_space.shape or ()))
        arguments["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, float(noise)))
    if ppo.normalize_obs or ppo.normalize_rewards:
        envs = _normalized(envs, ppo)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            model = algorithm(_policy_name(envs.observation_space), envs, **arguments, seed=run.seed, device=device)
    except (AssertionError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserError(f"Stable-Baselines3 cannot make {run.algorithm} with these settings: {reason}.") from error
    model.said = tuple(" ".join(str(each.message).split()) for each in caught if issubclass(each.category, UserWarning))
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _policy_name(observation_space: spaces.Space) -> str:
    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(observation_space) else "MlpPolicy"


def _normalized(envs: VecEnv, ppo: PPOConfig) -> VecNormalize:
    """Stable-Baselines3's own normalization by running statistics."""
    if ppo.normalize_obs and not isinstance(envs.observation_space, spaces.Box):
        raise UserError(
            "normalize_obs with Stable-Baselines3's algorithms needs observations of one Box, but got "
            f"{space_name(envs.observation_space)}; switch it off."
        )
    return VecNormalize(
        envs, norm_obs=ppo.normalize_obs, norm_reward=ppo.normalize_rewards, clip_obs=ppo.clip_obs, gamma=ppo.gamma
    )
