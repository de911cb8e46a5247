"""Looks an environment over before it is trained in: what it returns, whether it repeats itself, what it draws from."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.models.rl.core.global_random import find_global_random, global_generators_untouched
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.core.vec_errors import EnvFailedError, EnvResultError


def check_env(env_fn: Callable[[], gymnasium.Env], *, n_steps: int = 200, seed: int = 0) -> list[str]:
    """What is wrong with the environments that `env_fn` makes, a sentence each; empty where nothing was found.

    Makes three, resets each and takes n_steps random actions, with resets between episodes. Leaves the global
    generators as they were.

    >>> check_env(lambda: gymnasium.make("CartPole-v1"))
    []
    """
    with global_generators_untouched(), warnings.catch_warnings(action="ignore"):  # gymnasium.make() checks as well
        try:
            with SerialEnv([env_fn]) as one, SerialEnv([env_fn]) as other:
                drawn = find_global_random(env_fn, n_steps=n_steps, seed=seed)
                unfit = _unfit_observation(one, n_steps, seed)
                # Who draws from a global generator never repeats itself, and was told so.
                differing = None if drawn else _first_difference(one, other, n_steps, seed)
        except EnvFailedError as error:
            return [_sentence(error)]
    return [sentence for sentence in (drawn, unfit, differing) if sentence]


def _walk(envs: SerialEnv, n_steps: int, seed: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Where, and what came of it: a reset and n_steps actions, the same ones each time."""
    envs.action_space.seed(seed)
    yield "reset()", envs.reset(seed=seed)[:1]
    for step in range(1, n_steps + 1):
        yield f"step {step}", envs.step(envs.action_space.sample())[:4]


def _unfit_observation(envs: SerialEnv, n_steps: int, seed: int) -> str | None:
    for where, (observation, *_) in _walk(envs, n_steps, seed):
        problem = _misfit(envs.observation_space, observation, "")
        if problem:
            return f"The observation of {where}{problem}; clip it, or declare the space that it is from."
    return None


def _misfit(space: gymnasium.Space, value: Any, name: str) -> str | None:
    """What does not belong to the space, named by its keys; None where all does."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        problems = (_misfit(part, value[key], f"{name}[{key!r}]") for key, part in named)
        return next((problem for problem in problems if problem), None)
    if isinstance(space, spaces.Box):
        outside = ~((value >= space.low) & (value <= space.high))  # so that NaN is outside
        if not outside.any():
            return None
        low, high = space.low[outside][0], space.high[outside][0]
        return f"{name} holds {value[outside][0]:g}, but its space reaches from {low:g} to {high:g}"
    return None if value in space else f"{name} is {value!r}, which is not in its space, {space}"


def _first_difference(one: SerialEnv, other: SerialEnv, n_steps: int, seed: int) -> str | None:
    for (where, mine), (_, its) in zip(_walk(one, n_steps, seed), _walk(other, n_steps, seed), strict=True):
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
