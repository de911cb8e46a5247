"""monitor.csv: one line per finished episode, with the columns r, l and t of Stable-Baselines3's Monitor first.

Its comment line above the header is left out, so that every reader of CSV takes the file as it is.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_pipeline.monitoring.line_file import LineFile, read_lines
from ml_pipeline.monitoring.sink import EpisodeRecord

EPISODES_FILE = "monitor.csv"
HEADER = "r,l,t,env,global_step"


class MonitorCsv:
    """Writes return, length, seconds since training began, environment and global step of each episode."""

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        """Begin a new file or, where a run goes on, drop the episodes that ended after `resume_step`.

        resume_step: the step of the last iteration that was reported, which is `MetricsFile.last_step`. A checkpoint
        taken in mid-rollout is ahead of it, and the run reports that rollout's episodes when it ends.
        Raises UserError where the file cannot be written, or is there already and no run is resumed.
        """
        kept = []
        if resume_step is not None:
            kept = [line for line in read_lines(path) if (step := _step_of(line)) is not None and step <= resume_step]
        self._file = LineFile(path, [HEADER, *kept], replace=resume_step is not None)

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one line per episode."""
        self._file.append(
            f"{episode.episode_return:.9g},{episode.length},{episode.time_s:.6f},{episode.env_index},{episode.global_step}"
            for episode in episodes
        )

    def close(self) -> None:
        self._file.close()


def _step_of(line: str) -> int | None:
    columns = line.split(",")
    if len(columns) != HEADER.count(",") + 1 or not columns[-1].isdecimal():
        return None
    return int(columns[-1])
