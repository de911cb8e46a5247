"""monitor.csv: one line per finished episode, in the format that Stable-Baselines3's `load_results` reads.

    #{"t_start": 1700000000.0, "env_id": "CartPole-v1"}
    r,l,t,env,global_step

Other readers of CSV take it if they skip lines that begin with #.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_pipeline.monitoring.line_file import LineFile, read_lines
from ml_pipeline.monitoring.sink import EpisodeRecord

EPISODES_FILE = "monitor.csv"
HEADER = "r,l,t,env,global_step"


class MonitorCsv:
    """Writes return, length, seconds since training began, environment and global step of each episode."""

    def __init__(self, path: Path, *, env_id: str = "", resume_step: int | None = None) -> None:
        """Begin a new file or, if a run goes on, drop the episodes that ended after `resume_step`.

        env_id: what is learned, for the first line.
        resume_step: the step of the last iteration that was reported, which is `MetricsFile.last_step`. A checkpoint
        taken in mid-rollout is ahead of it, and the run reports that rollout's episodes when it ends.
        Raises UserError where the file cannot be written, or is there already and no run is resumed.
        """
        first, kept = first_line(env_id), []
        if resume_step is not None:
            lines = read_lines(path)
            first = next((line for line in lines[:1] if line.startswith("#")), first)
            kept = [line for line in lines if (step := _step_of(line)) is not None and step <= resume_step]
        self._file = LineFile(path, [first, HEADER, *kept], replace=resume_step is not None)

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one line per episode."""
        self._file.append(
            f"{episode.episode_return:.9g},{episode.length},{episode.time_s:.6f},{episode.env_index},{episode.global_step}"
            for episode in episodes
        )

    def close(self) -> None:
        self._file.close()


def first_line(env_id: str, t_start: float | None = None) -> str:
    """The comment above the header, as Monitor writes it. t_start: seconds since the epoch; now if it is None."""
    return "#" + json.dumps({"t_start": time.time() if t_start is None else t_start, "env_id": env_id})


def _step_of(line: str) -> int | None:
    columns = line.split(",")
    if len(columns) != HEADER.count(",") + 1 or not columns[-1].isdecimal():
        return None
    return int(columns[-1])
