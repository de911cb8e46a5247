"""Reports the evaluations of a trial's runs to the trial, and stops the run that is to be pruned."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ml_pipeline.monitoring.line_file import read_lines
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.metrics_file import METRICS_FILE, STEP
from ml_pipeline.monitoring.sink import EpisodeRecord
from ml_pipeline.runs.stop import StopRequest

SCORE = "eval/score"


class Trial(Protocol):
    """What `TrialRuns` needs of a trial; an `optuna.Trial` is one."""

    @property
    def number(self) -> int: ...

    def report(self, value: float, step: int) -> None: ...

    def should_prune(self) -> bool: ...


class TrialProgress(RunListener):
    """A sink and a listener of each of a trial's runs in turn.

    Reported is the median over the runs so far of the best score of each. The step is the environment steps so far,
    rounded down to a multiple of `report_every`: pruners compare the trials that reported at one step, and trials with
    rollouts of other lengths are evaluated at other steps.
    """

    def __init__(self, trial: Trial, *, n_units: int, report_every: int) -> None:
        """n_units: how many runs the trial has. report_every: environment steps, the same for all trials of a study."""
        self._trial = trial
        self._units_left = n_units
        self._report_every = report_every
        self._bests: list[float] = []
        self._steps_before = 0  # of the runs before this one
        self._timesteps = 0  # of this run
        self._last_reported = 0
        self.stop = StopRequest()
        """Of the run under way."""
        self.n_evaluations = 0
        """Of all runs, those before an interruption included. Not all are reported, but each may be the best."""
        self.pruned: str | None = None
        """Why the trial ends, once it is to be pruned."""
        self.error: Exception | None = None
        """What the trial raised; it is told nothing more."""

    def begin_run(self, folder: Path, *, timesteps: int) -> None:
        """The next run of the trial, of this many environment steps, is about to begin or to go on in this folder."""
        self._folder = folder
        self._steps_before += self._timesteps
        self._timesteps = timesteps
        self._units_left -= 1
        self._bests.append(-math.inf)
        self.stop = StopRequest()

    def started(self, start: RunStart) -> None:
        """Report what a run that goes on was evaluated at before."""
        if not start.first_step:
            return
        for line in read_lines(self._folder / METRICS_FILE):
            metrics = _object(line)
            if SCORE in metrics and isinstance(step := metrics.get(STEP), int) and step <= start.first_step:
                self.n_evaluations += 1
                score = metrics[SCORE]
                self._report(-math.inf if score is None else score, step)  # the file knows no infinity

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        if SCORE not in metrics:
            return
        self.n_evaluations += 1
        if self.error is not None:
            return
        step = int(metrics[STEP])
        reported = self._report(metrics[SCORE], step)
        if not reported or (step >= self._timesteps and not self._units_left):
            return  # nothing is left to be saved by pruning
        if self._told(self._trial.should_prune):
            value = statistics.median(self._bests)
            self.pruned = f"Pruned after {self._steps_before + step:,} steps, at {value:,.4g}."
            self.stop.request(self.pruned)

    def close(self) -> None:
        """There is nothing to finish."""

    def _report(self, score: float, step: int) -> bool:
        """Whether the trial was told of the score; it is told of one at each step."""
        self._bests[-1] = max(self._bests[-1], score)
        done = self._steps_before + min(step, self._timesteps)
        at = done // self._report_every * self._report_every
        if at <= self._last_reported or self.error is not None:
            return False
        self._last_reported = at
        self._told(lambda: self._trial.report(statistics.median(self._bests), at))
        return self.error is None

    def _told(self, call: Any) -> Any:
        """What the call returns. One that fails, as where the storage is away, stops the run, which is saved."""
        try:
            return call()
        except Exception as error:
            self.error = error
            self.stop.request(f"The trial could not be told of an evaluation: {error}")
            return None


def _object(line: str) -> Mapping[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
