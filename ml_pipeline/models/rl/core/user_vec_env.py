"""A vector environment of another library, or of the user's own: checks and converts what it returns to NumPy arrays.

Arrays of JAX, torch and others are read through `__array__` or DLPack. It never imports these libraries.
"""

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from ml_pipeline.models.rl.core.stepping.batch import copy_of
from ml_pipeline.models.rl.core.stepping.errors import VectorResultError
from ml_pipeline.models.rl.core.stepping.results import can_hold, is_fixed_size, observation_rows

Array = np.ndarray


def autoreset_mode_of(envs: VectorEnv) -> AutoresetMode | None:
    """The autoreset mode that the environments declare, as a member or its value; None if they declare none."""
    try:
        return AutoresetMode(envs.metadata.get("autoreset_mode"))
    except ValueError:
        return None


class PassingWrapper(VectorWrapper):
    """A wrapper that also passes on methods that only some vector environments have, such as `get_states`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)


class UserVectorEnv(PassingWrapper):
    """The environments, with NumPy arrays that fit their spaces; those with autoreset DISABLED reset in the same step.

    A result that cannot be used raises VectorResultError, which says what was expected. Each array may be a view, or
    read-only, and is valid until the next call. 8 CartPoles in NumPy take 95 us per step, and 83 without it.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._space, self._n = env.single_observation_space, env.num_envs
        self._is_fixed_size = is_fixed_size(self._space)
        self._mode = autoreset_mode_of(env)
        self._name = type(getattr(env, "unwrapped", env)).__name__

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._unusable("the result of reset()", "(observations, infos)", _described(result), "return both")
        return self._observations(result[0], "reset()"), result[1]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        result: Any = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5:
            expected = "(observations, rewards, terminated, truncated, infos)"
            raise self._unusable("the result of step()", expected, _described(result), "return all five")
        observations = self._observations(result[0], "step()")
        rewards = self._column("rewards", result[1], "iufb", "numbers")
        terminated = self._column("terminated", result[2], "b", "bools")
        truncated = self._column("truncated", result[3], "b", "bools")
        infos = result[4]
        if not isinstance(infos, dict):
            remedy = "return a dict with one array per key, as Gymnasium does since 0.26"
            raise self._unusable("infos", "a dict", _described(infos), remedy)
        if self._mode == AutoresetMode.DISABLED:
            # reset() may write into arrays of the step.
            rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
            observations, infos = self._reset_ended(observations, terminated | truncated, infos)
        elif self._mode == AutoresetMode.SAME_STEP and "final_obs" not in infos and (truncated & ~terminated).any():
            old = ' under the name "final_observation" of Gymnasium before 1.0' if "final_observation" in infos else ""
            raise self._unusable(
                "infos",
                '"final_obs" with the last observation of each episode that ended',
                f"{'it' if old else 'none'}{old} when environment {(truncated & ~terminated).argmax()} was truncated",
                'give infos["final_obs"], or declare the autoreset_mode with which the environments reset',
            )
        return observations, rewards, terminated, truncated, infos

    def _reset_ended(self, last: Any, done: Array, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The observations after a reset of the environments in `done`, and infos with their last observations."""
        if not done.any():
            return last, infos
        last = copy_of(last)
        final_obs, rows = np.empty(self._n, dtype=object), observation_rows(self._space, last)
        for i in done.nonzero()[0].tolist():
            final_obs[i] = rows.read(i)
        observations, _ = self.reset(options={"reset_mask": done.copy()})
        for before, after in zip(_leaves(last), _leaves(observations), strict=True):
            if not np.array_equal(before[~done], after[~done], equal_nan=after.dtype.kind == "f"):
                raise self._unusable(
                    "the observations of reset()",
                    f'those of the last step for all environments outside options["reset_mask"], {done.tolist()}',
                    "others",
                    "reset only the environments in the mask",
                )
        return observations, {"final_obs": final_obs, "_final_obs": done, "final_info": infos}

    def _observations(self, value: Any, call: str) -> Any:
        return self._fitting(self._space, value, f"the observations of {call}") if self._is_fixed_size else value

    def _fitting(self, space: Space, value: Any, what: str) -> Any:
        """The value as arrays of this space, of a single environment."""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            parts: Any = space.spaces
            is_dict = isinstance(space, spaces.Dict)
            keys = list(parts) if is_dict else list(range(len(parts)))
            has_parts = isinstance(value, dict) if is_dict else isinstance(value, tuple | list)
            if not has_parts or any(key not in value for key in keys if is_dict) or len(value) != len(keys):
                raise self._unusable(what, f"parts {keys}", _described(value), "return what the space says")
            fitted = {key: self._fitting(parts[key], value[key], f"{what}, part {key!r},") for key in keys}
            return fitted if is_dict else tuple(fitted.values())
        array, shape = _array(value), (self._n, *(space.shape or ()))
        assert space.dtype is not None
        if array.shape != shape or not can_hold(space.dtype, array):
            remedy = "return one row per environment, in the shape and dtype of single_observation_space"
            raise self._unusable(what, f"{space.dtype} {shape}", f"{array.dtype} {array.shape}", remedy)
        return array.astype(space.dtype, copy=False)

    def _column(self, name: str, value: Any, kinds: str, meant: str) -> Array:
        array = _array(value)
        if array.shape != (self._n,) or array.dtype.kind not in kinds:
            expected, received = f"{self._n} {meant} in an array", f"{array.dtype} {array.shape}"
            raise self._unusable(name, expected, received, "return one per environment")
        return array

    def _unusable(self, what: str, expected: str, received: str, remedy: str) -> VectorResultError:
        return VectorResultError(f"{self._name}: {what} must be {expected}, but got {received}; {remedy}.")


def _array(value: Any) -> Array:
    """The value as an array, without a copy if possible."""
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _leaves(value: Any) -> list[Array]:
    if isinstance(value, dict | tuple):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(part)]
    return [value]


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a dict with {sorted(map(str, value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
