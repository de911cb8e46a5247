"""Checks an environment before training: what it returns, whether a seed repeats it, which generators it draws from."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.allowed_actions import random_actions
from ml_pipeline.models.rl.core.separate_process import CallFailed, Calls, run_in_process
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.core.stepping.errors import EnvFailedError, EnvResultError
from ml_pipeline.runtime.global_random import global_generators_untouched, outcome, watch_global_random


def check_env(env_fn: Callable[[], gymnasium.Env], *, n_steps: int = 200, seed: int = 0) -> list[str]:
    """What is wrong with the environments that `env_fn` makes, one sentence each; empty if nothing was found.

    Makes three, resets each and takes n_steps random actions that its masks allow, with resets between episodes. Leaves
    the global generators as they were.

    >>> check_env(lambda: gymnasium.make("CartPole-v1"))
    []
    """
    return outcome(_look_over(env_fn, n_steps, seed))


def check_env_in_process(
    env_fn: Callable[[], gymnasium.Env], *, n_steps: int = 200, seed: int = 0, step_timeout_s: float | None = None
) -> list[str]:
    """`check_env` in a worker process, so that it also reports a call that hangs or that kills its process."""
    try:
        return run_in_process(partial(_look_over, env_fn, n_steps, seed), step_timeout_s=step_timeout_s)
    except CallFailed as error:
        return [f"It {error.how}." + (f"\n\n{error.stack}" if error.stack else "")]


def _look_over(env_fn: Callable[[], gymnasium.Env], n_steps: int, seed: int) -> Calls[list[str]]:
    """Yields each call of an environment before it is made; returns what is wrong."""
    with global_generators_untouched(), warnings.catch_warnings(action="ignore"):  # gymnasium.make() checks as well
        yield "construction"
        try:
            with SerialEnv([env_fn]) as one, SerialEnv([env_fn]) as other:
                drawn = yield from watch_global_random(env_fn, n_steps=n_steps, seed=seed)
                seen, failure = yield from _walk(one, n_steps, seed)
                differing = None
                # An environment that draws from a global generator never repeats itself, and that is reported.
                if not (drawn or failure):
                    again, failure = yield from _walk(one, n_steps, seed)
                    fresh, failure_too = yield from _walk(other, n_steps, seed)
                    differing, failure = _first_difference(again, fresh, seed), failure or failure_too
        except EnvFailedError as error:
            return [_sentence(error)]
    return [sentence for sentence in (drawn, _unfit_observation(one, seen), failure, differing) if sentence]


_Seen = list[tuple[str, tuple[Any, ...]]]


def _walk(envs: SerialEnv, n_steps: int, seed: int) -> Calls[tuple[_Seen, str | None]]:
    """Where, and what came of it: a reset and n_steps actions, the same ones each time; and how it failed, if it did.

    Yields each call before it is made.
    """
    seen: _Seen = []
    envs.action_space.seed(seed)
    envs.single_action_space.seed(seed)
    try:
        yield "reset()"
        observations, infos = envs.reset(seed=seed)
        seen.append(("reset()", (observations,)))
        for where in (f"step {step}" for step in range(1, n_steps + 1)):
            yield where
            observations, *rest, infos = envs.step(random_actions(envs, observations, infos, each=envs.envs))
            seen.append((where, (observations, *rest)))
    except EnvFailedError as error:
        return seen, _sentence(error)
    except UserError as error:  # a mask of another size
        return seen, str(error)
    return seen, None


def _unfit_observation(envs: SerialEnv, seen: _Seen) -> str | None:
    for where, (observation, *_) in seen:
        problem = _space_mismatch(envs.observation_space, observation, "")
        if problem:
            return f"The observation of {where}{problem}; clip it, or declare the space that it is from."
    return None


def _space_mismatch(space: gymnasium.Space, value: Any, name: str) -> str | None:
    """What does not belong to the space, named by its keys; None where all does."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        problems = (_space_mismatch(part, value[key], f"{name}[{key!r}]") for key, part in named)
        return next((problem for problem in problems if problem), None)
    if isinstance(space, spaces.Box):
        outside = ~((value >= space.low) & (value <= space.high))  # so that NaN is outside
        if not outside.any():
            return None
        low, high = space.low[outside][0], space.high[outside][0]
        return f"{name} holds {value[outside][0]:g}, but its space reaches from {low:g} to {high:g}"
    return None if value in space else f"{name} is {value!r}, which is not in its space, {space}"


def _first_difference(again: _Seen, fresh: _Seen, seed: int) -> str | None:
    for (where, mine), (_, its) in zip(again, fresh, strict=False):  # one may have failed earlier
        if not _are_equal(mine, its):
            return (
                f"Two environments with seed {seed} and the same actions differ in {where}; draw all that is random "
                "from self.np_random, which reset(seed=...) seeds, and keep no clock and no state of other episodes."
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
        return f"In {report.doing}, {error.field} must be {error.expected}, but it was {error.received}."
    action = "" if report.action is None else f" with action {report.action!r}"
    return f"It raises {report.type_name} in {report.doing}{action}: {report.exception}."
