"""Metrics of one iteration of a Stable-Baselines3 algorithm, under PPO's names, and its time by phase."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.monitoring.sinks import EpisodeRecord
from ml_pipeline.runs.sb3.model import WatchedEnvs

# Metrics that the algorithm records; "time/" and episode means are ours.
_THEIRS = ("train/", "rollout/exploration_rate")


@dataclass(frozen=True, kw_only=True)
class SB3Statistics:
    """One iteration: steps of the environments, with the updates in between. own: the algorithm's log."""

    iteration: int
    global_step: int
    n_steps: int
    """Transitions of this iteration, over all environments."""
    episodes: Sequence[EpisodeRecord]
    mean_return_100: float
    time_spent: TimeSpent
    n_worker_restarts: int
    own: Mapping[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """All metrics, under their names in a metrics file."""
        return {
            "time/iteration": self.iteration,
            "time/global_step": self.global_step,
            "time/steps_per_second": self.n_steps / max(sum(self.time_spent), 1e-9),
            **{f"time/{name}": seconds for name, seconds in self.time_spent._asdict().items()},
            "rollout/n_worker_restarts": self.n_worker_restarts,
            "rollout/n_completed_episodes": len(self.episodes),
            "rollout/episode_return": _mean([each.episode_return for each in self.episodes]),
            "rollout/episode_length": _mean([each.length for each in self.episodes]),
            "rollout/mean_return_100": self.mean_return_100,
            **self.own,
        }


def logged_figures(recorded: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that an algorithm records about its updates and exploration."""
    return {
        name: float(value) for name, value in recorded.items() if name.startswith(_THEIRS) and isinstance(value, Real)
    }


def diverged(figures: Mapping[str, float]) -> str | None:
    """Which loss is not finite, in words; None if all are."""
    broken = [name for name, value in figures.items() if name.endswith("loss") and not math.isfinite(value)]
    return f"{broken[0]} is {figures[broken[0]]}" if broken else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


class Clock:
    """Times how long the loop of Stable-Baselines3 collects and learns."""

    def __init__(self, watched: WatchedEnvs) -> None:
        self._watched = watched
        self._began: float | None = None
        self.elapsed_before_s = 0.0
        """Seconds of training before the last `begin`."""
        self.start_iteration(0)

    def elapsed_s(self) -> float:
        """Seconds of training so far."""
        return self.elapsed_before_s + (0.0 if self._began is None else time.perf_counter() - self._began)

    def begin(self, global_step: int) -> None:
        """Training begins or continues."""
        self._began = time.perf_counter()
        self.start_iteration(global_step)

    def end(self) -> None:
        self.elapsed_before_s, self._began = self.elapsed_s(), None

    def start_iteration(self, global_step: int) -> None:
        """Reset the counts; the time since the last call of any method is dropped."""
        self._first_step = global_step
        self._collecting_s = self._learning_s = 0.0
        self._stepping_s, self._waited_s = self._watched.stepping_s, self._watched.parallel_env.waited_s
        self._mark = time.perf_counter()

    def collects(self) -> None:
        """A rollout begins: the time up to now was learning."""
        self._learning_s += self._since_mark()

    def learns(self) -> None:
        """A rollout ends: the time up to now was collecting."""
        self._collecting_s += self._since_mark()

    def take(self, global_step: int) -> tuple[int, TimeSpent]:
        """Number of transitions of the finished iteration, and its time by phase."""
        self.collects()
        stepped_s = self._watched.stepping_s - self._stepping_s
        waited_s = self._watched.parallel_env.waited_s - self._waited_s
        spent = TimeSpent(
            acting_s=max(0.0, self._collecting_s - stepped_s),
            stepping_s=max(0.0, stepped_s - waited_s),
            waiting_s=waited_s,
            learning_s=self._learning_s,
        )
        return global_step - self._first_step, spent

    def _since_mark(self) -> float:
        now = time.perf_counter()
        passed, self._mark = now - self._mark, now
        return passed
