"""One worker of a study: it trains trials in one process, until the study has its trials or a stop is requested.

Several workers, on one machine or many, share a study through its storage alone. The number of trials is exact without
a lock: before a worker asks for a trial, it checks whether the study needs one, and afterwards whether others were
faster. Trials are numbered in one order that all processes see. Trial k may run only if fewer than n_trials trials with
smaller numbers wait, run or have finished. So never more than n_trials run or finish in any race, because the last
trial that is allowed has seen all the others. A trial that may not run is void.
"""

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.tuning.search.samplers import SeededByTrial
from ml_pipeline.tuning.study_files import (
    FEATURE_WARNINGS,
    FOLDERS_ATTRIBUTE,
    STOPPED,
    feature_warnings,
    is_try,
    kind_of,
    n_finished,
    named_folders,
)
from ml_pipeline.tuning.trials.lost_trials import Heartbeat, fail_as_lost, fail_lost_trials, queue_again, record_process
from ml_pipeline.tuning.trials.trial_run import TrialOutcome

_LOOK_S = 0.5
_LONGEST_REASON = 2000


class Runs(Protocol):
    """Trains trials, as `TrialRuns` does."""

    def folders(self, number: int, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The run folders of a new trial. Raises UserError if its settings are impossible."""

    def train(
        self,
        trial: Any,
        settings: Mapping[str, Any],
        *,
        folders: Sequence[str] | None = None,
        stop: StopRequest,
        say: Callable[[str], None],
    ) -> TrialOutcome:
        """Train until the run is finished, pruned or stopped."""


@dataclass(frozen=True, kw_only=True)
class TrialEnd:
    """How a trial ended, for display. state: see `TrialOutcome`."""

    number: int
    state: str
    value: float | None
    reason: str | None
    global_step: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class WorkerEvents:
    """Callbacks of a worker: the number of a trial that begins, how it ended, and messages."""

    began: Callable[[int], None]
    ended: Callable[[TrialEnd], None]
    say: Callable[[str], None]


class Worker:
    """Asks the study for trials, trains them, and tells it the results."""

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        *,
        n_trials: int,
        suggest: Callable[[optuna.Trial], Mapping[str, Any]],
        runs: Runs,
        stop: StopRequest,
        events: WorkerEvents,
        is_shared: bool = False,
    ) -> None:
        """folder: the study's. n_trials: total of the study. suggest: draws the settings of a trial. is_shared: whether
        machines that do not see the folder may work on the study."""
        self._study, self._folder, self._n_trials = study, folder, n_trials
        self._suggest, self._runs = suggest, runs
        self._stop, self._events = stop, events
        self._is_shared = is_shared

    def work(self) -> None:
        """Train until the study has its trials, its sampler has nothing more to draw, or a stop is requested.

        Raises DiskFull if nothing can be written, and UserError if the storage cannot be used.
        """
        while not self._stop.requested:
            fail_lost_trials(self._study, self._folder, self._events.say)
            counts = count_trials(self._study)
            drawn_all = self._drawn_all()
            if counts.finished >= self._n_trials or (drawn_all and not counts.running):
                return
            if counts.taken >= self._n_trials or drawn_all:
                _wait(self._stop, _LOOK_S)  # a running trial may still fail and need a replacement
                continue
            trial = self._study.ask()
            if may_run(self._study, trial.number, self._n_trials):
                self.run(trial)
            else:
                trial.set_user_attr("void", True)
                self._study.tell(trial, state=TrialState.FAIL)

    def _drawn_all(self) -> bool:
        """Whether the sampler has nothing more to draw, and no trial waits to be repeated."""
        sampler = self._study.sampler
        if not isinstance(sampler, SeededByTrial) or not sampler.is_exhausted(self._study):
            return False
        return not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))

    def run(self, trial: optuna.Trial) -> TrialEnd | None:
        """Train a trial of this worker and record how it ended; None if others considered it lost."""
        began = time.monotonic()
        self._events.began(trial.number)
        try:
            outcome = self._trained(trial)
            if outcome is not None:
                return self._record(trial, outcome, seconds=round(time.monotonic() - began, 3))
        except UpdateFinishedTrialError:
            pass
        self._events.say(f"Trial {trial.number} was considered lost in the meantime, and was left to other processes.")
        return None

    def _trained(self, trial: optuna.Trial) -> TrialOutcome | None:
        # At once, before the first heartbeat, so that a process killed before it begins a run is also noticed.
        record_process(trial, trial.number)
        trial.set_user_attr("host", socket.gethostname())
        trial.set_user_attr("pid", os.getpid())
        try:
            settings = dict(self._suggest(trial))
        except optuna.TrialPruned as error:
            reason = str(error) or "The search space pruned its settings."
            return TrialOutcome(state="impossible", reason=excerpt(reason, _LONGEST_REASON))
        except Exception as error:  # of the user's function, or of the sampler
            sentence = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            return TrialOutcome(state="failed", reason=excerpt(sentence, _LONGEST_REASON))
        trial.set_user_attr("settings", settings)
        try:
            earlier = [folder.name for folder in named_folders(self._folder, trial.user_attrs)] or None
        except UserError as error:
            return TrialOutcome(state="failed", reason=str(error))
        try:
            names = earlier or self._runs.folders(trial.number, settings)
        except UserError as error:
            return TrialOutcome(state="impossible", reason=str(error))
        trial.set_user_attr(FOLDERS_ATTRIBUTE, list(names))
        stop = StopRequest()
        beat = Heartbeat(
            self._folder / names[0],
            trial.number,
            stored=trial if self._is_shared else None,
            on_lost=lambda: stop.request("The trial was given to another process."),
        )
        with self._stop.told_to(lambda: stop.request(str(self._stop.reason))), beat:
            outcome = self._runs.train(trial, settings, folders=earlier, stop=stop, say=self._events.say)
        return None if beat.lost else outcome

    def _own_warnings(self, warnings: Sequence[str]) -> list[str] | None:
        """Warnings about a trial's features that the study does not have yet; None if there are none."""
        known = feature_warnings(self._study) if warnings else ()
        return [each for each in warnings if each not in known] or None

    def _record(self, trial: optuna.Trial, outcome: TrialOutcome, *, seconds: float) -> TrialEnd:
        """Tell the study the result; attributes first, since they cannot be set once a trial has ended."""
        is_full = outcome.state == "failed" and is_about_a_full_disk(outcome.reason)
        state = "stopped" if is_full else outcome.state
        reason = STOPPED if outcome.state == "stopped" else outcome.reason
        attributes: dict[str, Any] = {
            "seconds": seconds,
            "global_step": outcome.global_step,
            "evaluations": outcome.n_evaluations,
            "reason": reason,
            "impossible": True if state == "impossible" else None,
            "validation_sharpe": outcome.validation_sharpe,
            FEATURE_WARNINGS: self._own_warnings(outcome.feature_warnings),
        }
        for name, value in attributes.items():
            if value is not None:
                trial.set_user_attr(name, value)
        if state == "complete":
            self._study.tell(trial, outcome.value)
        elif state == "lost":
            fail_as_lost(self._study, trial.number, self._folder, str(reason), self._events.say)
        else:
            pruned = state in {"pruned", "impossible"}
            self._study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        if state == "stopped":
            queue_again(self._study, trial.number, self._folder)
        end = TrialEnd(
            number=trial.number,
            state=state,
            value=outcome.value,
            reason=reason,
            global_step=outcome.global_step,
            seconds=seconds,
        )
        self._events.ended(end)
        if is_full:
            raise DiskFull(
                f"Trial {trial.number} could not be saved: {outcome.reason} Make room and run the same command again "
                "to continue."
            )
        return end


def _wait(stop: StopRequest, seconds: float) -> None:
    """Wait for the time or the stop request, by polling: the request takes no lock, so it cannot wake a thread."""
    end = time.monotonic() + seconds
    while not stop.requested and (left := end - time.monotonic()) > 0:
        time.sleep(min(0.05, left))


_TAKES_A_PLACE = ("waiting", "running", "complete", "pruned")


class TrialCounts(NamedTuple):
    """finished: complete or pruned, without impossible trials and those that continue another one."""

    finished: int
    running: int

    @property
    def taken(self) -> int:
        return self.finished + self.running


def count_trials(study: optuna.Study) -> TrialCounts:
    """How many trials of the study have finished and are running, in any process."""
    trials = study.get_trials(deepcopy=False)
    return TrialCounts(n_finished(trials), sum(kind_of(trial) == "running" and is_try(trial) for trial in trials))


def may_run(study: optuna.Study, number: int, n_trials: int) -> bool:
    """Whether the trial with this number is among the n_trials that may run."""
    return is_among(study.get_trials(deepcopy=False), number, n_trials)


def is_among(trials: Sequence[FrozenTrial], number: int, n_trials: int) -> bool:
    """Whether fewer than n_trials earlier trials count."""
    earlier = [each for each in trials if each.number < number and is_try(each)]
    return sum(kind_of(each) in _TAKES_A_PLACE for each in earlier) < n_trials


_FULL = (
    *(os.strerror(code).lower() for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    "the disk is full",  # for a checkpoint, since torch gives no error code
)


class DiskFull(UserError):
    """Nothing more can be saved."""


def is_about_a_full_disk(sentence: str | None) -> bool:
    """
    >>> is_about_a_full_disk("Cannot write the checkpoint: No space left on device.")
    True
    """
    return any(words in (sentence or "").lower() for words in _FULL)
