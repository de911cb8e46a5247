"""Keeps the workers of a study going: hears what they tell, starts another where one is killed, and ends them."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import optuna

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.jobs.exit_reason import how_it_ended
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import ignoring_signals
from ml_pipeline.tuning.workers.lost_trials import fail_lost_trials
from ml_pipeline.tuning.workers.setbacks import Setbacks
from ml_pipeline.tuning.workers.worker_processes import WorkerEvent, WorkerProcesses

_LOOK_S = 0.1
_TICK_S = 2.0
_SAME_SENTENCE_S = 10.0  # workers say the same of a database that all of them wait for


class Listener(Protocol):
    """Who is told how the trials of this call end."""

    def trial_ended(self, end: Mapping[str, Any]) -> None:
        """end: a `TrialEnd`, by its names."""

    def say(self, sentence: str) -> None:
        """What a person who watches should know."""


class Jobs:
    """Runs as many workers at once as it is told, until the study has its trials or a stop is requested."""

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        processes: WorkerProcesses,
        *,
        listener: Listener,
        stop: StopRequest,
        on_tick: Callable[[], None],
    ) -> None:
        """folder: the study's. on_tick: called every few seconds, and after each trial."""
        self._study, self._folder, self._processes = study, folder, processes
        self._listener, self._stop, self._on_tick = listener, stop, on_tick
        self._setbacks = Setbacks()
        self._done: set[int] = set()  # workers that ended as they should
        self._trials: dict[int, int] = {}  # by worker, what it trains
        self._refusal: str | None = None
        self._ending = False
        self._due_s = 0.0
        self._said: dict[str, float] = {}

    def run(self, n_jobs: int) -> bool:
        """Return whether the study has come to its end; False where the stop request ended it, with all saved.

        Raises UserError where nothing can be trained or stored, CheckFailed where trials or workers keep failing, and
        Interrupted at a second Ctrl-C; then the workers are killed, and their trials queued again.
        """
        try:
            for _ in range(n_jobs):
                self._processes.start()
            while self._processes.pids:
                self._look()
        except BaseException:
            with ignoring_signals():
                self._end_at_once()
            raise
        self._tick()
        if self._refusal is not None:
            raise UserError(self._refusal)
        if self._setbacks.sentence is not None:
            raise CheckFailed(self._setbacks.sentence)
        return not self._stop.requested

    def _look(self) -> None:
        event = self._processes.next_event(_LOOK_S)
        if event is not None:
            if event.exit_code is None:
                self._note(event.worker, event.told)
            else:
                self._note_end(event)
        if not self._ending and (self._stop.requested or self._refusal or self._setbacks.sentence):
            self._ending = True
            self._processes.stop()
        if time.monotonic() >= self._due_s:
            self._tick()

    def _note(self, worker: int, told: Mapping[str, Any]) -> None:
        if "began" in told:
            self._trials[worker] = told["began"]
        elif "ended" in told:
            self._trials.pop(worker, None)
            self._setbacks.note_trial(told["ended"])
            self._listener.trial_ended(told["ended"])
            self._due_s = 0.0
        elif "say" in told:
            self._say(told["say"])
        elif "done" in told:
            self._done.add(worker)
        elif "refused" in told:
            self._done.add(worker)
            self._refusal = self._refusal or told["refused"]

    def _note_end(self, event: WorkerEvent) -> None:
        trial = self._trials.pop(event.worker, None)
        if event.worker in self._done or (self._ending and event.exit_code == 0):
            return
        assert event.exit_code is not None
        self._setbacks.note_worker(event.exit_code, log=str(shown_path(self._processes.log)))
        during = "" if trial is None else f" in trial {trial}"
        again = not self._ending and self._setbacks.sentence is None
        another = " Another one takes its place." if again else ""
        self._say(f"Worker process {event.worker} {_ended(event.exit_code)}{during}.{another}")
        self._fail_lost()
        if again:
            self._processes.start()

    def _tick(self) -> None:
        self._fail_lost()
        self._on_tick()
        self._due_s = time.monotonic() + _TICK_S

    def _fail_lost(self) -> None:
        try:
            fail_lost_trials(self._study, self._folder, self._say)
        except UserError as error:  # the storage is gone: workers cannot go on either
            self._refusal = self._refusal or str(error)

    def _end_at_once(self) -> None:
        self._processes.kill()
        self._fail_lost()

    def _say(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._said.get(sentence, float("-inf")) > _SAME_SENTENCE_S:
            self._said[sentence] = now
            self._listener.say(sentence)


def _ended(exit_code: int) -> str:
    return "ended" if exit_code == 0 else how_it_ended(exit_code).replace("killed", "was killed")
