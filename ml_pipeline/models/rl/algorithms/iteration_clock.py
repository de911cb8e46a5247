"""Where the time of one iteration goes."""

import time
from typing import Any

from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.models.rl.algorithms.vector_envs import waited_s
from ml_pipeline.models.rl.rollout.collector import Collector


class IterationClock:
    """Begins with the rollout; `collected` is called once it is full, and `time_spent` after the update."""

    def __init__(self, collector: Collector, envs: Any) -> None:
        self._collector, self._envs = collector, envs
        self._began = time.perf_counter()
        self._before = self._in_total()

    def collected(self) -> None:
        """The rollout is full."""
        self._collected = time.perf_counter()
        self._stepped_s, self._waited_s, self._exchanged_s = (
            now - before for now, before in zip(self._in_total(), self._before, strict=True)
        )

    def time_spent(self) -> TimeSpent:
        return TimeSpent(
            acting_s=self._collected - self._began - self._stepped_s - self._exchanged_s,
            stepping_s=self._stepped_s - self._waited_s,
            waiting_s=self._waited_s,
            learning_s=time.perf_counter() - self._collected,
            exchanging_s=self._exchanged_s,
        )

    def _in_total(self) -> tuple[float, float, float]:
        return self._collector.stepping_s, waited_s(self._envs), self._collector.exchanging_s
