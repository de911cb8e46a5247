"""Returns and lengths of episodes, from the environments' own rewards: before any scaling or clipping."""

from collections import deque
from typing import Any

import numpy as np

from ml_pipeline.monitoring.sinks import EpisodeRecord

Array = np.ndarray
WINDOW = 100


class EpisodeTracker:
    """Adds up rewards per environment and makes a record when an episode ends."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.finished: list[EpisodeRecord] = []

    def count(self, rewards: Array, done: Array, *, global_step: int, times: Array) -> None:
        """Count T steps of all N environments.

        rewards: float (T, N). done: bool (T, N). global_step: before the first of them. times: float (T,), when each
        was done, in s of training.
        """
        ends = np.any(done, axis=1).tolist()
        n_counted = 0  # in `_lengths`
        for t, (of_step, some_ended) in enumerate(zip(rewards, ends, strict=True)):
            self._returns += of_step
            if some_ended:
                self._lengths += t + 1 - n_counted
                n_counted = t + 1
                self._record(done[t], global_step=global_step + n_counted * done.shape[1], time_s=float(times[t]))
        self._lengths += len(rewards) - n_counted

    def _record(self, done: Array, *, global_step: int, time_s: float) -> None:
        """Keep the episodes that ended in a step, bool (N,); others begin there."""
        for i in done.nonzero()[0].tolist():
            record = EpisodeRecord(
                episode_return=float(self._returns[i]),
                length=int(self._lengths[i]),
                env_index=i,
                global_step=global_step,
                time_s=time_s,
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
