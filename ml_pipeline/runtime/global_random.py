"""Finds environments that draw from the global generators of `random` and `numpy.random`.

All environments of a process share these generators, so such an environment depends on the other ones in its process,
and with them on the number of workers. No seed makes it reproducible.
"""

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ml_pipeline.runtime.acting import random_action, reported_mask

T = TypeVar("T")

_REMEDY = (
    "draw from self.np_random, which reset(seed=...) seeds: all environments of a process share the global generators, "
    "so results depend on the number of workers"
)


def find_global_random(env_fn: Callable[[], gymnasium.Env], *, n_steps: int = 200, seed: int = 0) -> str | None:
    """Name the environment, the generator, the call that drew from it and the remedy in a sentence; None if none did.

    Creates an environment, resets it, takes up to n_steps random actions that its masks allow, with resets between
    episodes, and closes it. An exception of the environment ends the search. Restores the global generators.

    >>> find_global_random(lambda: gymnasium.make("CartPole-v1")) is None
    True
    """
    return outcome(watch_global_random(env_fn, (f"step {step}" for step in range(1, n_steps + 1)), seed=seed))


def watch_global_random(
    env_fn: Callable[[], gymnasium.Env], steps: Iterable[str], *, seed: int
) -> Generator[str, None, str | None]:
    """`find_global_random` as a generator: yields the name of each call before making it. steps: names of the steps."""
    with global_generators_untouched():
        watch = _Watch()
        yield "construction"
        env = watch.run("the constructor", env_fn)
        try:
            env.action_space.seed(seed)
            yield "reset()"
            observation, info = watch.run("reset()", env.reset, seed=seed)
            for step in steps:
                if watch.found:
                    break
                yield step
                action = random_action(env.action_space, reported_mask(env, observation, info))
                observation, _, terminated, truncated, info = watch.run(step, env.step, action)
                if terminated or truncated:
                    observation, info = watch.run(f"reset() after {step}", env.reset)
        except Exception:  # random actions may be illegal in this environment; report what was found so far
            pass
        finally:
            env.close()
        return f"{env} draws from {watch.found}; {_REMEDY}." if watch.found else None


def outcome(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end, and return its return value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@contextmanager
def global_generators_untouched() -> Iterator[None]:
    """Restore the states of the global generators at the end of the block."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


class _Watch:
    """Compares the global generators before and after each call. found: a description of the first draw."""

    def __init__(self) -> None:
        self.found = ""

    def run(self, where: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = _states()
        try:
            return function(*args, **kwargs)
        finally:
            names = [name for name, state in _states().items() if state != before[name]]
            if names and not self.found:
                self.found = f"the global {' and '.join(names)} in {where}"


def _states() -> dict[str, Any]:
    """The state of each global generator."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {"random": random.getstate(), "numpy.random": (keys.tobytes(), position, has_gauss, gauss)}  # type: ignore[union-attr]
