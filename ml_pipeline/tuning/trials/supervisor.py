"""Supervises the workers of a study: receives their messages, replaces killed ones, and ends them."""

import queue
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import optuna

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.wording import shown_path, without_traceback
from ml_pipeline.jobs.child import Child, Event
from ml_pipeline.jobs.exit_reason import how_it_ended
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import ignoring_signals
from ml_pipeline.tuning.trials.lost_trials import fail_lost_trials

WORKERS_LOG = "workers.log"
"""In the study's folder: the output of libraries in workers, and tracebacks of failures."""
MOST_FAILED = 10
"""Failed trials in a row, in one call of `tune`, after which the study stops."""
MOST_IMPOSSIBLE = 100
"""Impossible trials in a row after which the study stops; each takes milliseconds."""
_MOST_ENDS = 10
_MOST_KILLS = 50  # by a user, or by a system that is out of memory
_SIGKILL = -getattr(signal, "SIGKILL", 9)
_LONGEST_REASON = 1000
_LOOK_S = 0.1
_TICK_S = 2.0
_SAME_SENTENCE_S = 10.0  # all workers report the same outage of a database


class StartWorker(Protocol):
    """A function that starts one more worker."""

    def __call__(self, *, into: "queue.SimpleQueue[Event]") -> Child:
        """into: receives its events, which `worker_process` lists."""


class Listener(Protocol):
    """Receives the results of the trials of this call."""

    def trial_ended(self, end: Mapping[str, Any]) -> None:
        """end: the fields of a `TrialEnd`."""

    def say(self, sentence: str) -> None:
        """A message for the user."""


class Supervisor:
    """Runs a number of workers at once, until the study has its trials or a stop is requested."""

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        start: StartWorker,
        *,
        listener: Listener,
        stop: StopRequest,
        on_tick: Callable[[], None],
    ) -> None:
        """folder: the study's. on_tick: called every few seconds, and after each trial."""
        self._study, self._folder, self._start_worker = study, folder, start
        self._listener, self._stop, self._on_tick = listener, stop, on_tick
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._workers: list[Child] = []
        self._done: set[int] = set()  # pids of workers that ended normally
        self._trials: dict[int, int] = {}  # the trial that each worker trains, by pid
        self._limits = FailureLimits()
        self._refusal: str | None = None
        self._ending = False
        self._due_s = 0.0
        self._said: dict[str, float] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the workers whose end was not yet received."""
        return tuple(worker.pid for worker in self._workers)

    def run(self, n_jobs: int) -> bool:
        """Return whether the study is finished; False if a stop request ended it, with everything saved.

        Raises UserError if nothing can be trained or stored, CheckFailed if trials or workers keep failing, and
        Interrupted at a second Ctrl-C; then the workers are killed, and their trials queued again.
        """
        try:
            for _ in range(n_jobs):
                self._start()
            while self._workers:
                self._look()
        except BaseException:
            with ignoring_signals():
                self._end_at_once()
            raise
        self._tick()
        if self._refusal is not None:
            raise UserError(self._refusal)
        if self._limits.sentence is not None:
            raise CheckFailed(self._limits.sentence)
        return not self._stop.requested

    def _start(self) -> None:
        self._workers.append(self._start_worker(into=self._events))

    def _look(self) -> None:
        try:
            event = self._events.get(timeout=_LOOK_S)
        except queue.Empty:
            pass
        else:
            if event.exit_code is None:
                self._note(event.child.pid, event.message)
            else:
                self._note_end(event.child, event.exit_code)
        if not self._ending and (self._stop.requested or self._refusal or self._limits.sentence):
            self._ending = True
            for worker in self._workers:
                worker.stop()
        if time.monotonic() >= self._due_s:
            self._tick()

    def _note(self, worker: int, told: Mapping[str, Any]) -> None:
        if "began" in told:
            self._trials[worker] = told["began"]
        elif "ended" in told:
            self._trials.pop(worker, None)
            self._limits.note_trial(told["ended"])
            self._listener.trial_ended(told["ended"])
            self._due_s = 0.0
        elif "say" in told:
            self._say(told["say"])
        elif "done" in told:
            self._done.add(worker)
        elif "refused" in told:
            self._done.add(worker)
            self._refusal = self._refusal or told["refused"]

    def _note_end(self, worker: Child, exit_code: int) -> None:
        self._workers.remove(worker)
        worker.close()
        trial = self._trials.pop(worker.pid, None)
        if worker.pid in self._done or (self._ending and exit_code == 0):
            return
        self._limits.note_worker(exit_code, log=str(shown_path(self._folder / WORKERS_LOG)))
        during = "" if trial is None else f" in trial {trial}"
        again = not self._ending and self._limits.sentence is None
        another = " Another one replaces it." if again else ""
        how = "ended" if exit_code == 0 else how_it_ended(exit_code).replace("killed", "was killed")
        self._say(f"Worker process {worker.pid} {how}{during}.{another}")
        self._fail_lost()
        if again:
            self._start()

    def _tick(self) -> None:
        self._fail_lost()
        self._on_tick()
        self._due_s = time.monotonic() + _TICK_S

    def _fail_lost(self) -> None:
        try:
            fail_lost_trials(self._study, self._folder, self._say)
        except UserError as error:  # the storage is missing: workers cannot continue either
            self._refusal = self._refusal or str(error)

    def _end_at_once(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.close()
        self._fail_lost()

    def _say(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._said.get(sentence, float("-inf")) > _SAME_SENTENCE_S:
            self._said[sentence] = now
            self._listener.say(sentence)


class FailureLimits:
    """Limits on failures in a row: after that many failed trials or workers, further ones would fail too.

    Counts since the last finished trial.
    """

    def __init__(self) -> None:
        self._reset()
        self.sentence: str | None = None
        """Why the study should stop, once a limit is reached."""

    def _reset(self) -> None:
        self._failed = self._impossible = self._ends = self._kills = 0

    def note_trial(self, end: Mapping[str, Any]) -> None:
        """end: the fields of a `TrialEnd`."""
        state, reason = end["state"], end["reason"]
        told = without_traceback(reason or "No reason was recorded.", _LONGEST_REASON)
        if state in {"complete", "pruned"}:
            self._reset()
        elif state in {"failed", "lost"}:
            self._failed += 1
            if self._failed >= MOST_FAILED:
                self.sentence = f"{self._failed} trials in a row failed, so the study ends here. {told}"
        elif state == "impossible":
            self._impossible += 1
            if self._impossible >= MOST_IMPOSSIBLE:
                self.sentence = (
                    f"The settings of {self._impossible} trials in a row were impossible, so the study ends "
                    f"here; search fewer values. {told}"
                )

    def note_worker(self, exit_code: int, *, log: str) -> None:
        """A worker ended unexpectedly; log: the file with its last output."""
        self._kills += exit_code == _SIGKILL
        self._ends += exit_code != _SIGKILL
        if self._ends >= _MOST_ENDS or self._kills >= _MOST_KILLS:
            self.sentence = (
                f"{self._ends + self._kills} worker processes ended before a trial did, the last one "
                f"{how_it_ended(exit_code)}; see {log}. If memory is short, use a smaller --n-jobs."
            )
