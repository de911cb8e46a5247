"""Hooks that end a training early: at a target return, or when the return no longer rises."""

import math
from typing import Any

from ml_pipeline.models.rl.algorithms.trainer import Statistics, Trainer


class StopAtReturn:
    """Stops once the mean return of the last 100 training episodes reaches `target`."""

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, trainer: Trainer, statistics: Statistics) -> None:
        if statistics.mean_return_100 >= self._target:
            trainer.request_stop()


class StopOnPlateau:
    """Stops once the mean return of the last 100 training episodes has not risen for `patience` iterations.

    A rise exceeds the best so far by more than `min_rise`. Save `state_dict` with the trainer's: a resumed run then
    stops in the same iteration as an uninterrupted one.
    """

    def __init__(self, patience: int, *, min_rise: float = 0.0) -> None:
        self._patience = patience
        self._min_rise = min_rise
        self._best = -math.inf
        self._since = 0

    def __call__(self, trainer: Trainer, statistics: Statistics) -> None:
        if statistics.mean_return_100 > self._best + self._min_rise:
            self._best, self._since = statistics.mean_return_100, 0
        elif not math.isnan(statistics.mean_return_100):  # which it is before the first episode has ended
            self._since += 1
        if self._since >= self._patience:
            trainer.request_stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._since = state["best"], state["since"]
