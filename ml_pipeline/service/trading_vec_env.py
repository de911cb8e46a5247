"""The vector environments that `build_vec_env` returns, with their task and settings, and an optional monitor file.

The monitor file has Stable-Baselines3's format, which its `load_results` and plots read: r is an episode's return, l
its length, t the seconds since t_start; `trading.episode_figures` describes the other columns. An undefined ratio is an
empty cell, which pandas reads as NaN.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.monitoring.sinks import LineFile, first_line
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.episode_figures import EPISODE_FIGURES, BatchedEpisodeFiguresEnv
from ml_pipeline.trading.task import TradingTask

Step = tuple[Any, Any, Any, Any, dict[str, Any]]
SUFFIX = "monitor.csv"
HEADER = ",".join(["r", "l", "t", *EPISODE_FIGURES])


class EpisodeMonitor:
    """Writes one complete line per finished episode, so that a kill leaves complete lines. For a single writer."""

    def __init__(self, path: str | Path, env_id: str) -> None:
        """Create the file, replacing an earlier one. Raises UserError if it is not writable.

        path: without .monitor.csv, which is added as in Stable-Baselines3; if it is a folder, its monitor.csv.
        """
        self.path = monitor_file(path)
        self._t_start = time.time()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"The folder {self.path.parent} cannot be made: {error.strerror}; choose another monitor_path, or None."
            ) from error
        self._file = LineFile(self.path, [first_line(env_id, self._t_start), HEADER], replace=True)

    def write(self, final_info: Mapping[str, Any]) -> None:
        """Add the episodes of infos["final_info"] of a vector environment, in the order of the environments."""
        if "_episode" not in final_info:
            return
        seconds = time.time() - self._t_start
        self._file.append(list(_lines(final_info, seconds)))

    def close(self) -> None:
        self._file.close()


def monitor_file(path: str | Path) -> Path:
    """The file for a monitor_path, named as in Stable-Baselines3.

    >>> monitor_file("logs/vec_monitor").as_posix()
    'logs/vec_monitor.monitor.csv'
    """
    path = Path(path).expanduser()
    if path.name.endswith(SUFFIX):
        return path
    return path / SUFFIX if path.is_dir() else path.with_name(f"{path.name}.{SUFFIX}")


def _lines(final_info: Mapping[str, Any], seconds: float) -> Iterable[str]:
    episode = final_info["episode"]
    for i in np.flatnonzero(final_info["_episode"]).tolist():
        figures = [float(final_info[name][i]) for name in EPISODE_FIGURES]
        cells = [f"{float(episode['r'][i]):.9g}", f"{int(episode['l'][i])}", f"{seconds:.6f}"]
        yield ",".join([*cells, *("" if math.isnan(figure) else f"{figure:.9g}" for figure in figures)])


@dataclass(frozen=True)
class BuiltFrom:
    """The task and configuration from which environments were built. config: of a run in them."""

    task: TradingTask
    config: TrainConfig


class _Monitored:
    """Environments that write episode statistics to a monitor, which they close."""

    built_from: BuiltFrom
    is_monitored = True
    """False while throughput is measured."""
    _monitor: EpisodeMonitor | None = None

    def _written(self, step: Step) -> Step:
        if self._monitor is not None and self.is_monitored and "final_info" in step[4]:
            self._monitor.write(step[4]["final_info"])
        return step

    def _close_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()


class TradingVecEnv(_Monitored, ParallelEnv):
    """`ParallelEnv` with one symbol per environment, in turn. built_from: its task and configuration."""

    def __init__(
        self, env_fns: Sequence[EnvFactory], built_from: BuiltFrom, monitor: EpisodeMonitor | None, **options: Any
    ) -> None:
        """monitor: closed by `close`. options: of `ParallelEnv`."""
        super().__init__(env_fns, **options)
        self.built_from, self._monitor = built_from, monitor

    def _step_wait(self, timeout_s: float | None) -> Step:
        return self._written(super()._step_wait(timeout_s))

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        super().close_extras(timeout, terminate)
        self._close_monitor()


class BatchedTradingVecEnv(_Monitored, BatchedEpisodeFiguresEnv):
    """`BatchedTradingEnv` with one symbol per episode, drawn at random. Call `attach` after the constructor."""

    def attach(self, built_from: BuiltFrom, monitor: EpisodeMonitor | None) -> "BatchedTradingVecEnv":
        """Set the task, the configuration, and a monitor that `close` will close; return self."""
        self.built_from, self._monitor = built_from, monitor
        return self

    def step(self, actions: Any) -> Step:
        return self._written(super().step(actions))

    def close_extras(self, **kwargs: Any) -> None:
        super().close_extras(**kwargs)
        self._close_monitor()
