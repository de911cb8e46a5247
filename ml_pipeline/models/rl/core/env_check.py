"""Checks an environment before training: its results, whether a seed reproduces them, and its random generators."""

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.separate_process import CallFailed, Calls, run_in_process
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.core.stepping.errors import EnvFailedError, EnvResultError, InvalidResultError
from ml_pipeline.models.rl.core.stepping.results import checked_reset, checked_step, is_fixed_size, observation_rows
from ml_pipeline.runtime.acting import ACTION_MASK, random_actions
from ml_pipeline.runtime.global_random import global_generators_untouched, outcome, watch_global_random

Read = Callable[[spaces.Space], object]
"""Raises UserError if it cannot train on the observation space."""
_Seen = list[tuple[str, tuple[Any, ...]]]
_SPACE = "space"
_PASS_LIMIT_S = 10.0
_N_PARTS = 5
_PICTURE_DIMS = 3


def check_env(
    env_fn: Callable[[], gymnasium.Env],
    *,
    n_steps: int = 200,
    seed: int = 0,
    read: Read | None = None,
    pass_limit_s: float = _PASS_LIMIT_S,
) -> list[str]:
    """The problems of the environments that `env_fn` makes, one sentence each; empty if there are none.

    Makes some environments, resets each and takes n_steps random valid actions, with resets between episodes. read:
    raises UserError for an observation space that cannot be trained on; None accepts all. The global generators are
    unchanged afterwards.
    pass_limit_s: time limit for each of up to five passes; a slow environment takes fewer actions, at least one.

    >>> check_env(lambda: gymnasium.make("CartPole-v1"))
    []
    """
    return outcome(_look_over(env_fn, n_steps, seed, read, pass_limit_s))


def check_env_in_process(
    env_fn: Callable[[], gymnasium.Env],
    *,
    n_steps: int = 200,
    seed: int = 0,
    step_timeout_s: float | None = None,
    read: Read | None = None,
) -> list[str]:
    """`check_env` in a worker process, so that it also reports a call that hangs or that kills its process."""
    try:
        begin = partial(_look_over, env_fn, n_steps, seed, read, _PASS_LIMIT_S)
        return run_in_process(begin, step_timeout_s=step_timeout_s)
    except CallFailed as error:
        return [f"It {error.how}." + (f"\n\n{error.stack}" if error.stack else "")]


def _look_over(
    env_fn: Callable[[], gymnasium.Env], n_steps: int, seed: int, read: Read | None, pass_limit_s: float
) -> Calls[list[str]]:
    """Yields each call of an environment before it is made; returns the problems."""
    with global_generators_untouched(), warnings.catch_warnings(action="ignore"):  # gymnasium.make() checks as well
        yield "construction"
        try:
            with SerialEnv([env_fn]) as one, SerialEnv([env_fn]) as other:
                drawn = yield from watch_global_random(env_fn, _steps(n_steps, pass_limit_s), seed=seed)
                walk = partial(_walk, n_steps=n_steps, seed=seed, limit_s=pass_limit_s)
                seen, failure = yield from walk(one)
                differing: str | None = None
                others: dict[str, str] = {}
                # An environment that uses a global generator is not reproducible, and is already reported.
                if not (drawn or failure):
                    again, failure = yield from walk(one)
                    fresh, failure_too = yield from walk(other)
                    differing, failure = _first_difference(again, fresh, seed), failure or failure_too
                unread = _unreadable(one.single_observation_space, read)
            others, own = yield from _each_result(env_fn, n_steps, seed, pass_limit_s)
            if failure and not drawn:
                _, again_alone = yield from _each_result(env_fn, n_steps, seed, pass_limit_s)
                differing = _first_difference(own, again_alone, seed)
        except EnvFailedError as error:
            return [_sentence(error)]
    unfit = _unfit_observation(one, seen)
    found = [sentence for sentence in (unread, drawn, unfit, failure, differing) if sentence]
    for subject, sentence in others.items():
        told = unfit if subject == _SPACE else failure
        if not told or (subject != _SPACE and f", {subject} must be" not in told):
            found.append(sentence)
    return found


def _steps(n_steps: int, limit_s: float) -> Iterator[str]:
    """The names of up to n_steps steps: the first one, and those that begin within limit_s of it."""
    begin = time.monotonic()
    for step in range(1, n_steps + 1):
        if step > 1 and time.monotonic() - begin > limit_s:
            return
        yield f"step {step}"


def _unreadable(space: spaces.Space, read: Read | None) -> str | None:
    try:
        if read is not None:
            read(space)
    except UserError as error:
        return str(error)
    return None


def _each_result(
    env_fn: Callable[[], gymnasium.Env], n_steps: int, seed: int, limit_s: float
) -> Calls[tuple[dict[str, str], _Seen]]:
    """(problems by the name of the wrong part, one sentence each; the results of the environment).

    Continues after the first problem. `_walk` handles environments that raise or have action masks. Yields each call
    before it is made.
    """
    found: dict[str, str] = {}
    seen: _Seen = []
    yield "construction"
    env = env_fn()
    try:
        look = _Results(env, found)
        env.action_space.seed(seed)
        yield "reset()"
        observation, masked = look.at_reset(_reset(env, found, seed), "reset()")
        seen.append(("reset()", (copy.deepcopy(observation),)))
        for where in _steps(n_steps, limit_s):
            if masked:
                break
            action = env.action_space.sample()
            given = copy.deepcopy(action)
            yield where
            result = env.step(action)
            if not _are_equal(given, action):
                found.setdefault("action", f"In {where}, it changes the action passed to step(); work on a copy.")
            if look.at_step(result, where):
                break
            observation, reward, terminated, truncated, _ = result
            seen.append((where, copy.deepcopy((observation, reward, terminated, truncated))))
            if any(isinstance(flag, bool | np.bool_) and flag for flag in (terminated, truncated)):
                yield "reset()"
                look.at_reset(env.reset(), "reset()")
        if env.render_mode == "rgb_array":
            yield "render()"
            _look_at_picture(env.render(), found)
    except Exception:
        pass  # `_walk` reports it
    yield "close()"
    try:
        env.close()
        env.close()
    except Exception as error:
        found["close()"] = f"A second close() raises {type(error).__name__}: {error}; make it do nothing."
    return found, seen


def _reset(env: gymnasium.Env, found: dict[str, str], seed: int) -> Any:
    """The result of reset(), which must accept seed and options."""
    try:
        return env.reset(seed=seed, options={})
    except TypeError as error:
        missing = next((name for name in ("seed", "options") if f"'{name}'" in str(error)), None)
        if missing is None:
            raise
        found["reset"] = f"reset() does not take {missing}; write def reset(self, *, seed=None, options=None)."
        return env.reset() if missing == "seed" else env.reset(seed=seed)


def _look_at_picture(picture: Any, found: dict[str, str]) -> None:
    is_picture = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == _PICTURE_DIMS
    if not is_picture:
        is_array = isinstance(picture, np.ndarray)
        shown = f"{picture.dtype} of shape {picture.shape}" if is_array else f"a {type(picture).__name__}"
        found["render()"] = f"render() must return uint8 of shape (height, width, 3), but got {shown}."


class _Results:
    """Checks each part of a result separately, by the rules of training."""

    def __init__(self, env: gymnasium.Env, found: dict[str, str]) -> None:
        self._env = env
        self._found = found
        self._space = env.observation_space
        fixed = is_fixed_size(self._space)
        self._rows = observation_rows(self._space, create_empty_array(self._space, 1)) if fixed else None

    def at_reset(self, result: Any, where: str) -> tuple[Any, bool]:
        """(the observation, whether actions are masked)."""
        self._judge(where, checked_reset, result)
        observation = result[0] if isinstance(result, tuple | list) and len(result) else result
        info = result[1] if isinstance(result, tuple | list) and len(result) > 1 else {}
        self._observation(observation, where)
        named = [part for part in (observation, info) if isinstance(part, dict)]
        masked = any(ACTION_MASK in part for part in named) or hasattr(self._env.unwrapped, "action_masks")
        return observation, masked

    def at_step(self, result: Any, where: str) -> bool:
        """Whether to stop because the result does not have five parts."""
        if not isinstance(result, tuple | list) or len(result) != _N_PARTS:
            self._judge(where, checked_step, result)
            return True
        observation, reward, terminated, truncated, info = result
        self._judge(where, checked_step, (observation, reward, False, False, {}))
        self._judge(where, checked_step, (observation, 0.0, terminated, False, {}))
        self._judge(where, checked_step, (observation, 0.0, False, truncated, {}))
        self._judge(where, checked_step, (observation, 0.0, False, False, info))
        self._observation(observation, where)
        return False

    def _observation(self, observation: Any, where: str) -> None:
        if self._rows is None:
            return
        with warnings.catch_warnings(record=True) as converted:
            warnings.simplefilter("always")
            fits = self._judge(where, partial(self._rows.write, 0), observation)
        for warning in converted:
            self._found.setdefault("dtype", f"In {where}, {warning.message}")
        if fits and (problem := _space_mismatch(self._space, self._rows.read(0), "")):
            sentence = f"The observation of {where}{problem}; clip it, or declare a space that contains it."
            self._found.setdefault(_SPACE, sentence)

    def _judge(self, where: str, check: Callable[[Any], Any], value: Any) -> bool:
        try:
            check(value)
        except InvalidResultError as error:
            self._found.setdefault(error.args[0], f"In {where}, {error}.")
            return False
        return True


def _walk(envs: SerialEnv, n_steps: int, seed: int, limit_s: float) -> Calls[tuple[_Seen, str | None]]:
    """The results of a reset and n_steps actions, the same actions each time, and the error message or None.

    Yields each call before it is made.
    """
    seen: _Seen = []
    envs.action_space.seed(seed)
    envs.single_action_space.seed(seed)
    try:
        yield "reset()"
        observations, infos = envs.reset(seed=seed)
        seen.append(("reset()", (observations,)))
        for where in _steps(n_steps, limit_s):
            yield where
            observations, *rest, infos = envs.step(random_actions(envs, observations, infos, each=envs.envs))
            seen.append((where, (observations, *rest)))
    except EnvFailedError as error:
        return seen, _sentence(error)
    except UserError as error:  # a mask of the wrong size
        return seen, str(error)
    return seen, None


def _unfit_observation(envs: SerialEnv, seen: _Seen) -> str | None:
    for where, (observation, *_) in seen:
        problem = _space_mismatch(envs.observation_space, observation, "")
        if problem:
            return f"The observation of {where}{problem}; clip it, or declare a space that contains it."
    return None


def _space_mismatch(space: gymnasium.Space, value: Any, name: str) -> str | None:
    """The first part of the value that is outside the space, named by its keys; None if all parts are inside."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        problems = (_space_mismatch(part, value[key], f"{name}[{key!r}]") for key, part in named)
        return next((problem for problem in problems if problem), None)
    if isinstance(space, spaces.Box):
        outside = ~((value >= space.low) & (value <= space.high))  # so that NaN is outside
        if not outside.any():
            return None
        low, high, held = space.low[outside][0], space.high[outside][0], value[outside][0]
        shown = f"{held:g}" if f"{held:g}" not in (f"{low:g}", f"{high:g}") else repr(held.item())
        return f"{name} holds {shown}, but its space allows {low:g} to {high:g}"
    return None if value in space else f"{name} is {value!r}, which is not in its space, {space}"


def _first_difference(again: _Seen, fresh: _Seen, seed: int) -> str | None:
    for (where, mine), (_, its) in zip(again, fresh, strict=False):  # one may have failed earlier
        if not _are_equal(mine, its):
            return (
                f"Two environments with seed {seed} and the same actions differ in {where}; draw every random "
                "number from self.np_random, which reset(seed=...) seeds, and use no clock or state of old episodes."
            )
    return None


def _are_equal(a: Any, b: Any) -> bool:
    try:
        np.testing.assert_equal(a, b)  # NaN is equal to itself here
    except AssertionError:
        return False
    return True


def _sentence(error: EnvFailedError) -> str:
    report = error.report
    if isinstance(error, EnvResultError):
        return f"In {report.doing}, {error.field} must be {error.expected}, but got {error.received}; {error.remedy}."
    action = "" if report.action is None else f" with action {report.action!r}"
    return f"It raises {report.type_name} in {report.doing}{action}: {report.exception}."
