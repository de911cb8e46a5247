"""Hooks that end a training early: at a target, or where it no longer gets better."""

import math
from typing import Any

from ml_pipeline.models.rl.algorithms.ppo_trainer import IterationStatistics, PPOTrainer


class StopAtReturn:
    """Stops once the mean return of the last 100 training episodes reaches `target`."""

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, trainer: PPOTrainer, statistics: IterationStatistics) -> None:
        if statistics.mean_return_100 >= self._target:
            trainer.request_stop()


class StopOnPlateau:
    """Stops once the mean return of the last 100 training episodes has not risen for `patience` iterations.

    A rise is one by more than `min_rise` over the best so far. To stop a resumed run where the uninterrupted one would
    have been, save `state_dict` along with the trainer's.
    """

    def __init__(self, patience: int, *, min_rise: float = 0.0) -> None:
        self._patience = patience
        self._min_rise = min_rise
        self._best = -math.inf
        self._since = 0

    def __call__(self, trainer: PPOTrainer, statistics: IterationStatistics) -> None:
        if statistics.mean_return_100 > self._best + self._min_rise:
            self._best, self._since = statistics.mean_return_100, 0
        elif not math.isnan(statistics.mean_return_100):  # before the first episode has ended nothing is known
            self._since += 1
        if self._since >= self._patience:
            trainer.request_stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._since = state["best"], state["since"]
