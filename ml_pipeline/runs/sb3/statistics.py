"""The figures of one iteration of an algorithm of Stable-Baselines3, under the names that PPO's have."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.monitoring.sink import EpisodeRecord

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
