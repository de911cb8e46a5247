"""Statistics of one iteration of training: its episodes, its update, and its time."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.update.ppo_update import UpdateStatistics


class TimeSpent(NamedTuple):
    """The time of one iteration, in parts that add up to it."""

    acting_s: float
    """Choosing actions, and processing and storing the results of the environments."""
    stepping_s: float
    """In the environments' step(), without waiting."""
    waiting_s: float
    """Waiting for worker processes."""
    learning_s: float
    exchanging_s: float = 0.0
    """Exchanging rollouts with other ranks; 0 without ranks."""


@dataclass(frozen=True)
class IterationStatistics:
    """Statistics of one rollout and one update.

    Episode statistics are means over the episodes that ended in this rollout; NaN if none did.
    """

    iteration: int
    global_step: int
    n_envs: int
    n_steps: int
    n_completed_episodes: int
    episode_return: float
    episode_length: float
    mean_return_100: float
    explained_variance: float
    update: UpdateStatistics
    time_spent: TimeSpent
    n_worker_restarts: int
    """Since the environments were made, not only in this iteration."""

    def metrics(self) -> dict[str, float]:
        """All statistics, under their names in metrics files."""
        return {
            "time/iteration": self.iteration,
            "time/global_step": self.global_step,
            "time/n_envs": self.n_envs,
            "time/steps_per_second": self.n_envs * self.n_steps / sum(self.time_spent),
            **{f"time/{name}": seconds for name, seconds in self._times().items()},
            "rollout/n_worker_restarts": self.n_worker_restarts,
            "rollout/n_completed_episodes": self.n_completed_episodes,
            "rollout/episode_return": self.episode_return,
            "rollout/episode_length": self.episode_length,
            "rollout/mean_return_100": self.mean_return_100,
            "train/explained_variance": self.explained_variance,
            **{f"train/{name}": value for name, value in self.update._asdict().items()},
        }

    def _times(self) -> dict[str, float]:
        times = self.time_spent._asdict()
        return (
            times if self.time_spent.exchanging_s else {name: times[name] for name in times if name != "exchanging_s"}
        )


class IterationClock:
    """Measures an iteration from the start of its rollout.

    Call `collected` when the rollout is full, and `time_spent` after the update.
    """

    def __init__(self, collector: Collector, envs: Any) -> None:
        self._collector, self._envs = collector, envs
        self._began = time.perf_counter()
        self._before = self._in_total()

    def collected(self) -> None:
        """Take the time at the end of the rollout."""
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
        return self._collector.stepping_s, _waited_s(self._envs), self._collector.exchanging_s


def mean_or_nan(values: Iterable[float]) -> float:
    """The mean; NaN if there are no values."""
    found = list(values)
    return float(np.mean(found)) if found else float("nan")


def _waited_s(envs: Any) -> float:
    """The time that the trainer's process has waited for workers so far, in seconds."""
    return float(getattr(envs, "waited_s", 0.0))
