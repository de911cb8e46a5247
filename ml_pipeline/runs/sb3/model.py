"""Makes one of Stable-Baselines3's models from the settings of a run, for environments or for spaces alone."""

import warnings
from typing import Any

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
from ml_pipeline.models.rl.preprocessing.space_data import space_name
from ml_pipeline.runs.sb3.arguments import algorithm_class, constructor_arguments, is_on_policy
from ml_pipeline.runtime.action_masks import ACTION_MASK


def check_spaces(algorithm: str, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Raise UserError, with the algorithms that fit, where this one does not take such observations or actions."""
    check_actions(algorithm, type(action_space).__name__, space_name(action_space))
    if isinstance(action_space, spaces.Discrete) and action_space.start != 0:
        raise UserError(
            f"{algorithm} is for actions from 0 on, but they begin at {action_space.start}; train by {OWN}."
        )
    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    if ACTION_MASK in parts:
        raise UserError(f"{algorithm} knows no action masks, but the environment has one; train by {OWN}, which does.")
    if isinstance(observation_space, spaces.Tuple) or any(
        isinstance(each, spaces.Dict | spaces.Tuple) for each in parts.values()
    ):
        raise UserError(
            f"{algorithm} takes no observations within observations, but they are {space_name(observation_space)}; "
            f"train by {OWN}, which does."
        )


def make_model(run: RunConfig, ppo: PPOConfig, envs: VecEnv, *, device: str, only_acts: bool = False) -> Any:
    """The model, with networks that nothing has trained. Draws from the global random generators, and seeds them.

    only_acts: without memory for transitions. What the algorithm warns of is in the model's `said`, as sentences.
    Raises UserError where it does not take the settings or the spaces.
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
            "normalize_obs with Stable-Baselines3's algorithms is for observations of one Box, but they are "
            f"{space_name(envs.observation_space)}; switch it off."
        )
    return VecNormalize(
        envs, norm_obs=ppo.normalize_obs, norm_reward=ppo.normalize_rewards, clip_obs=ppo.clip_obs, gamma=ppo.gamma
    )
