"""Sinks, which receive the metrics of a trainer: the protocol, and the files of a run, which grow by complete lines."""

import contextlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TextIO

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.files import only_regular, read_regular, written_whole


class EpisodeRecord(NamedTuple):
    """A finished episode, with rewards before any scaling or clipping."""

    episode_return: float
    length: int
    env_index: int
    global_step: int
    """Transitions of all environments when it ended."""
    time_s: float
    """Seconds since training began."""
    info: Mapping[str, Any] | None = None
    """The last info: numbers, texts, arrays, and lists, tuples and dicts of them. Only for callbacks; None in sinks."""


class MetricsSink(Protocol):
    """Receives the metrics of each iteration. Raises UserError if they cannot be stored."""

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Receive one iteration: metrics by name, NaN if missing, and the episodes that ended in it."""

    def close(self) -> None:
        """Finish; may be called twice."""


class Sinks:
    """Several sinks as one; they are called in order."""

    def __init__(self, *sinks: MetricsSink) -> None:
        self._sinks = list(sinks)

    def add(self, sink: MetricsSink) -> None:
        self._sinks.append(sink)

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        for sink in self._sinks:
            sink.write(metrics, episodes)

    def close(self) -> None:
        """Close all sinks, even if one of them fails."""
        with ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close)


_MOST_BYTES = 2**31
"""Size limit of a metrics.jsonl; an iteration takes about 2,000 bytes."""


def read_lines(path: Path) -> list[str]:
    """The complete lines of a file, without a last line that is cut off; empty if the file is missing."""
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return text.split("\n")[:-1]


class AppendedFile:
    """An open text file that only grows. Added text is flushed to the operating system.

    remedy: advice in the error if the disk is full. Subclasses open `_file`.
    """

    remedy: ClassVar[str]
    path: Path
    _file: TextIO

    def add(self, text: str) -> None:
        """Add complete lines. Raises UserError if the disk fails; the file is closed then."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # close() tries to flush again
                self._file.close()
            raise self.failure(error) from error

    def close(self) -> None:
        self._file.close()

    def failure(self, error: OSError) -> UserError:
        return UserError(f"{self.path} cannot be written: {error.strerror}; {self.remedy}.")


class LineFile(AppendedFile):
    """An open file of lines, which `append` flushes to the operating system."""

    remedy = "make room, or choose another folder"

    def __init__(self, path: Path, lines: Iterable[str] = (), *, replace: bool) -> None:
        """Open the file with `lines` as its content. Unless `replace`, other existing lines are an error.

        Raises UserError if the file is not writable, or has other lines that must be kept.
        """
        self.path = path
        lines = list(lines)
        if not replace and read_lines(path) not in ([], lines):
            raise UserError(f"{path} already exists and would be lost; resume its run, or choose another folder.")
        try:
            if path.exists():
                with written_whole(path, "w", encoding="utf-8", newline="\n") as file:
                    file.writelines(f"{line}\n" for line in lines)
                self._file = open(path, "a", encoding="utf-8", newline="\n", opener=only_regular)  # noqa: SIM115
            else:  # a new file has nothing to lose in a power cut: skip the sync, which takes 10 ms per file
                self._file = path.open("x", encoding="utf-8", newline="\n")
                self.append(lines)
        except OSError as error:
            raise self.failure(error) from error

    def append(self, lines: Iterable[str]) -> None:
        """Add lines. Raises UserError if the disk fails; the file is closed then."""
        self.add("".join(f"{line}\n" for line in lines))


METRICS_FILE = "metrics.jsonl"
STEP = "time/global_step"


class MetricsFile:
    """metrics.jsonl: one JSON object per line, one line per iteration; NaN and infinity are null."""

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        """Create the file or, if a run resumes at `resume_step`, drop the lines of later steps.

        Raises UserError if the file is not writable, or if it exists and no run is resumed.
        """
        self.last_step = 0
        """Global step of the last kept iteration; 0 if there is none."""
        kept = []
        if resume_step is not None:
            for line in read_lines(path):
                step = _step_of(line)
                if step is not None and step <= resume_step:
                    kept.append(line)
                    self.last_step = step
        self._path = path
        self._file = LineFile(path, kept, replace=resume_step is not None)

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one line."""
        self._file.append([_line(metrics)])

    def add_to_last(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics to the last line if it is the line of this global step."""
        lines = read_lines(self._path)
        if lines and _step_of(lines[-1]) == step:
            self._file.close()
            lines[-1] = _line({**json.loads(lines[-1]), **metrics})
            self._file = LineFile(self._path, lines, replace=True)

    def close(self) -> None:
        self._file.close()


def _line(metrics: Mapping[str, float | None]) -> str:
    return json.dumps({name: _number(value) for name, value in metrics.items()}, allow_nan=False)


def _number(value: float | None) -> float | int | None:
    if value is None:
        return None
    if isinstance(value, Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _step_of(line: str) -> int | None:
    try:
        return int(json.loads(line)[STEP])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


EPISODES_FILE = "monitor.csv"
HEADER = "r,l,t,env,global_step"


class MonitorCsv:
    """monitor.csv: one line per finished episode, in the format that Stable-Baselines3's `load_results` reads.

        #{"t_start": 1700000000.0, "env_id": "CartPole-v1"}
        r,l,t,env,global_step

    The columns are return, length, seconds since training began, environment and global step. Other CSV readers must
    skip lines that begin with #.
    """

    def __init__(self, path: Path, *, env_id: str = "", resume_step: int | None = None) -> None:
        """Create the file or, if a run resumes, drop the episodes that ended after `resume_step`.

        env_id: for the first line. resume_step: step of the last reported iteration, `MetricsFile.last_step`. A
        checkpoint within a rollout is ahead of it; the run reports the episodes of that rollout when the rollout ends.
        Raises UserError if the file is not writable, or if it exists and no run is resumed.
        """
        first, kept = first_line(env_id), []
        if resume_step is not None:
            lines = read_lines(path)
            first = next((line for line in lines[:1] if line.startswith("#")), first)
            kept = [line for line in lines if (step := _step_of_episode(line)) is not None and step <= resume_step]
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
    """The comment above the header, as in Monitor. t_start: seconds since the epoch; None: now."""
    return "#" + json.dumps({"t_start": time.time() if t_start is None else t_start, "env_id": env_id})


def _step_of_episode(line: str) -> int | None:
    columns = line.split(",")
    if len(columns) != HEADER.count(",") + 1 or not columns[-1].isdecimal():
        return None
    return int(columns[-1])
