"""The figures of one iteration of an algorithm of Stable-Baselines3, under PPO's names, and where its time goes."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.monitoring.sinks import EpisodeRecord
from ml_pipeline.runs.sb3.model import WatchedEnvs

# What the algorithm itself records; "time/" and the means of episodes are ours.
_THEIRS = ("train/", "rollout/exploration_rate")


@dataclass(frozen=True, kw_only=True)
class SB3Statistics:
    """One iteration: so many steps of the environments, with the updates in between. own: what the algorithm logged."""

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
        """All figures, under the names that a metrics file uses."""
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
    """The numbers among what an algorithm records of its updates and of its exploration."""
    return {
        name: float(value) for name, value in recorded.items() if name.startswith(_THEIRS) and isinstance(value, Real)
    }


def diverged(figures: Mapping[str, float]) -> str | None:
    """A loss that is no number any more, in words; None while all is well."""
    broken = [name for name, value in figures.items() if name.endswith("loss") and not math.isfinite(value)]
    return f"{broken[0]} is {figures[broken[0]]}" if broken else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


class Clock:
    """Told when the loop of Stable-Baselines3 begins to collect and to learn."""

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
        """Training begins, or goes on."""
        self._began = time.perf_counter()
        self.start_iteration(global_step)

    def end(self) -> None:
        self.elapsed_before_s, self._began = self.elapsed_s(), None

    def start_iteration(self, global_step: int) -> None:
        """Forget what was counted; what was done since the last call of anything here counts nowhere."""
        self._first_step = global_step
        self._collecting_s = self._learning_s = 0.0
        self._stepping_s, self._waited_s = self._watched.stepping_s, self._watched.parallel_env.waited_s
        self._mark = time.perf_counter()

    def collects(self) -> None:
        """A rollout begins: the time until now was learning."""
        self._learning_s += self._since_mark()

    def learns(self) -> None:
        """A rollout is over: the time until now was collecting."""
        self._collecting_s += self._since_mark()

    def take(self, global_step: int) -> tuple[int, TimeSpent]:
        """The transitions of the iteration that is over, and where its time went."""
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
