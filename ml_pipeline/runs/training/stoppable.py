"""A policy whose evaluation can be stopped between two of its steps."""

from collections.abc import Callable
from typing import Any

from ml_pipeline.runs.stop import StopRequest


class EvaluationStopped(Exception):
    """A stop was requested while the policy was evaluated."""


class Stoppable:
    """Acts as a policy does, until a stop is requested: then it raises EvaluationStopped."""

    def __init__(self, act: Callable[[Any], Any], stop: StopRequest) -> None:
        self._act = act
        self._stop = stop
        self.begin_episode: Callable[[], None] = getattr(act, "begin_episode", lambda: None)

    def __call__(self, observation: Any) -> Any:
        if self._stop.requested:
            raise EvaluationStopped
        return self._act(observation)
