"""Returns and lengths of episodes, from the environments' own rewards: before any scaling or clipping."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ml_pipeline.monitoring.sink import EpisodeRecord

Array = np.ndarray
WINDOW = 100


class EpisodeTracker:
    """Adds up rewards per environment and makes a record when an episode ends."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.finished: list[EpisodeRecord] = []

    def step(self, rewards: Array, done: Array, *, global_step: int, elapsed_s: Callable[[], float]) -> None:
        """Count one step of every environment. rewards: float (N,). done: bool (N,). elapsed_s: a clock."""
        self._returns += rewards
        self._lengths += 1
        for i in done.nonzero()[0].tolist():
            record = EpisodeRecord(
                episode_return=float(self._returns[i]),
                length=int(self._lengths[i]),
                env_index=i,
                global_step=global_step,
                time_s=elapsed_s(),
            )
            self.finished.append(record)
            self._recent.append(record.episode_return)
            self._returns[i] = 0.0
            self._lengths[i] = 0

    def take_finished(self) -> list[EpisodeRecord]:
        """The episodes that ended since the last call; `finished` is empty afterwards."""
        finished, self.finished = self.finished, []
        return finished

    def recent_mean_return(self) -> float:
        """Mean return of the last 100 episodes; NaN before the first has ended."""
        return float(np.mean(self._recent)) if self._recent else float("nan")

    def state_dict(self) -> dict[str, Any]:
        return {
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "recent": list(self._recent),
            "finished": [tuple(record) for record in self.finished],
        }

    def load_state_dict(self, state: dict[str, Any], *, running: bool) -> None:
        """Take over `state`; if its environments are not `running` on, the unfinished episodes are forgotten."""
        if running:
            self._returns = np.asarray(state["returns"], dtype=np.float64)
            self._lengths = np.asarray(state["lengths"], dtype=np.int64)
        self._recent = deque(state["recent"], maxlen=WINDOW)
        self.finished = [EpisodeRecord(*record) for record in state["finished"]]
