"""`ParallelEnv` as a `VecEnv` of Stable-Baselines3: train its PPO, DQN or SAC with it by changing one line.

    envs = SB3ParallelEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
    model = stable_baselines3.PPO("MlpPolicy", envs)

Needs Stable-Baselines3, the extra "sb3".
"""

import copy
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import install_extra
from ml_pipeline.integrations.env_calls import call_method, class_to_send, get_attribute, is_wrapped, set_attribute
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import ActionsError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

try:
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv
except ImportError as error:
    raise ImportError(f"Stable-Baselines3 is not installed; {install_extra('sb3')}") from error

Indices = int | Iterable[int] | None


class SB3ParallelEnv(VecEnv):
    """Takes the arguments of `ParallelEnv`, except autoreset_mode and copy, which Stable-Baselines3 determines.

    Also accepts an existing `ParallelEnv` with autoreset_mode SAME_STEP, the default.

    Each info has "TimeLimit.truncated", and "terminal_observation" if an episode ended. `parallel_env` is the
    `ParallelEnv` itself. The caller owns the returned arrays.

    >>> envs = SB3ParallelEnv([lambda: gymnasium.make("CartPole-v1")] * 4, num_workers=2)
    >>> envs.reset().shape
    (4, 4)
    >>> observations, rewards, dones, infos = envs.step(np.array([0, 1, 0, 1]))
    >>> rewards, infos[0]
    (array([1., 1., 1., 1.], dtype=float32), {'TimeLimit.truncated': False})
    >>> envs.close()
    """

    def __init__(self, env_fns: Sequence[EnvFactory] | ParallelEnv, **options: Any) -> None:
        if not isinstance(env_fns, ParallelEnv):
            env_fns = ParallelEnv(env_fns, **options, autoreset_mode=AutoresetMode.SAME_STEP, copy=True)
        self.parallel_env = envs = env_fns
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Begins new episodes; returns observations. Seeds and options that were set before are used once."""
        waiting = np.ones(self.num_envs, np.bool_)
        while waiting.any():  # once, unless options differ
            options = self._options[int(waiting.argmax())]
            alike = np.array([data_equivalence(one, options) for one in self._options])
            masked = options if alike.all() else {**options, "reset_mask": alike}
            observations, infos = self.parallel_env.reset(seed=self._seeds, options=masked or None)
            each = _per_env(infos, self.num_envs)
            for index in np.flatnonzero(alike).tolist():
                self.reset_infos[index] = each[index]
            waiting &= ~alike
        self._reset_seeds()
        self._reset_options()
        return self._owned(observations)

    def step_async(self, actions: Any) -> None:
        """Begins a step. Actions of a Dict or Tuple space may be one per environment, or batched as in Gymnasium."""
        self.parallel_env.step_async(_batched(self.action_space, actions))

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Ends the step: observations, rewards float32 (N,), dones bool (N,), infos, one per environment."""
        observations, rewards, terminated, truncated, batched = self.parallel_env.step_wait()
        dones = terminated | truncated
        final_obs = batched.pop("final_obs", None)
        final_infos = _per_env(batched.pop("final_info", {}), self.num_envs)
        infos = _per_env(batched, self.num_envs)
        for index in np.flatnonzero(dones).tolist():
            self.reset_infos[index] = infos[index]
            infos[index] = {**final_infos[index], "terminal_observation": final_obs[index]}
        for info, cut in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut
        return self._owned(observations), rewards.astype(np.float32), dones, infos

    def _owned(self, observations: Any) -> Any:
        """Arrays that later steps do not change."""
        return observations if self.parallel_env.copy else copy.deepcopy(observations)

    def close(self) -> None:
        """Ends the workers; may be called twice."""
        self.parallel_env.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The attribute of these environments, all by default."""
        return self._apply(indices, get_attribute, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of these environments, all by default, to one value."""
        self._apply(indices, set_attribute, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Calls a method of these environments, all by default."""
        return self._apply(indices, call_method, method_name, args, kwargs)

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Indices = None) -> list[bool]:
        """Whether these environments, all by default, have a wrapper of the class."""
        return self._apply(indices, is_wrapped, class_to_send(wrapper_class))

    def get_images(self) -> list[np.ndarray]:
        """A frame of every environment, made with render_mode="rgb_array"."""
        return list(self.parallel_env.render())

    def _apply(self, indices: Indices, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of function(env, *args) for these environments; a repeated index is called repeatedly."""
        every = range(self.num_envs)
        left = [(place, every[index]) for place, index in enumerate(self._get_indices(indices))]
        found: dict[int, Any] = {}
        while left:
            places = {env_id: place for place, env_id in reversed(left)}  # the first of each
            values = self.parallel_env.apply(function, *args, env_ids=list(places))
            found.update(zip(places.values(), values, strict=True))
            left = [(place, env_id) for place, env_id in left if place not in found]
        return [found[place] for place in sorted(found)]


def _batched(space: spaces.Space, actions: Any) -> Any:
    """Actions of a Dict or Tuple space in Gymnasium's form, if they are one per environment; others unchanged.

    Raises ActionsError if one of them lacks a part.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)) or not isinstance(actions, (list, tuple, np.ndarray)):
        return actions
    is_dict = isinstance(space, spaces.Dict)
    if not len(actions) or not all(isinstance(each, Mapping if is_dict else (tuple, list)) for each in actions):
        return actions
    keys: list[Any] = list(space.spaces) if is_dict else list(range(len(space.spaces)))
    for key in keys:
        if not all(key in each if is_dict else key < len(each) for each in actions):
            raise ActionsError(
                f"actions must be one per environment, each with an item {key!r}, but got {reprlib.repr(actions)}."
            )
    parts = [_batched(space[key], [each[key] for each in actions]) for key in keys]
    return dict(zip(keys, parts, strict=True)) if is_dict else tuple(parts)


def _per_env(batched: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """One info per environment, from Gymnasium's dict of arrays and masks; NumPy scalars are unchanged."""
    infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, mask in batched.items():
        name = key[1:]
        if not (key.startswith("_") and name in batched and isinstance(mask, np.ndarray)):
            continue
        values = batched[name]
        each = _per_env(values, num_envs) if isinstance(values, dict) else values
        for index in np.flatnonzero(mask).tolist():
            infos[index][name] = each[index]
    return infos
