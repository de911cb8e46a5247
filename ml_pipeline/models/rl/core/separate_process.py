"""Runs the calls of an environment one by one in a worker process, and reports the call that kills or hangs it."""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import gymnasium
from gymnasium import spaces

from ml_pipeline.models.rl.core.stepping.errors import StepTimeoutError, VectorEnvError, WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

T = TypeVar("T")
Calls = Generator[str, None, T]
"""Yields the name of each call, such as "reset()", before it makes the call; returns the overall result."""


class CallFailed(VectorEnvError):
    """A call killed its process, or did not return in time.

    how: a sentence without its subject, "is killed by SIGSEGV in reset()". stack: the Python stack of a call that
    hangs, as text, innermost call first; empty if it does not hang, or the system cannot read it.
    """

    def __init__(self, how: str, stack: str = "") -> None:
        super().__init__(how)
        self.how = how
        self.stack = stack


def run_in_process(begin: Callable[[], Calls[T]], *, step_timeout_s: float | None = None) -> T:
    """Makes the calls of `begin` in a worker process; returns their result, which must be picklable.

    Raises CallFailed if a call ended the process or took longer than step_timeout_s, EnvFailedError if a call raised
    (the exception is its cause), and any VectorEnvError of a worker that cannot start.
    """
    doing = "construction"
    with ParallelEnv([lambda: _CallsAsSteps(begin)], num_workers=1, step_timeout_s=step_timeout_s) as envs:
        try:
            envs.reset()
            while True:
                _, _, terminated, _, infos = envs.step([0])
                if terminated[0]:
                    (result,) = envs.get_attr("result")
                    return result
                doing = infos["doing"][0]
        except StepTimeoutError as error:
            raise CallFailed(
                f"has not returned from {doing} within step_timeout_s={step_timeout_s:g}", error.stack
            ) from error
        except WorkerDiedError as error:
            how = f"is killed by {error.signal}" if error.signal else f"ends its process with code {error.exitcode}"
            raise CallFailed(f"{how} in {doing}") from error


class _CallsAsSteps(gymnasium.Env):
    """An environment whose step() makes the next call. result: the result of all calls, once they are made."""

    observation_space = action_space = spaces.Discrete(1)

    def __init__(self, begin: Callable[[], Calls[Any]]) -> None:
        self.result: Any = None
        self._calls = begin()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        try:
            return 0, 0.0, False, False, {"doing": next(self._calls)}
        except StopIteration as end:
            self.result = end.value
            return 0, 0.0, True, False, {}
