"""The figures of episodes in a file of Stable-Baselines3's Monitor format, which its `load_results` and plots read.

    #{"t_start": 1700000000.0, "env_id": "EURUSD, GBPUSD"}
    r,l,t,drawdown,turnover,sharpe_ratio,max_drawdown

r is an episode's return, l its length, t the seconds since t_start; `trading.episode_figures` describes the others. A
ratio that is not defined is an empty cell, which pandas reads as NaN.
"""

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.line_file import LineFile
from ml_pipeline.monitoring.monitor_csv import first_line
from ml_pipeline.trading.episode_figures import EPISODE_FIGURES

SUFFIX = "monitor.csv"
HEADER = ",".join(["r", "l", "t", *EPISODE_FIGURES])


class EpisodeMonitor:
    """Writes a line when an episode ends, whole and at once, so that a kill leaves whole lines. Not for two writers."""

    def __init__(self, path: str | Path, env_id: str) -> None:
        """Begin a new file; one of an earlier environment is replaced. Raises UserError where it cannot be written.

        path: without .monitor.csv, which is added as Stable-Baselines3 does; in a folder, monitor.csv.
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
    """The file of a monitor_path, as Stable-Baselines3 names it.

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
