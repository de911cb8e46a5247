"""Trials whose process was killed: failed within a minute, and queued again to continue from their checkpoints.

Any process of a study may look for them, several at once: the storage lets only one of them fail a trial. They read
heartbeats: a small file in the trial's folder, and a copy in the storage. A machine that shares the folder reads the
file; another one reads the trial's attribute, if the storage serves machines without a common folder.
Optuna's own heartbeat does not support ask-and-tell, and a journal has none.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder_claim import record_end_of_lost
from ml_pipeline.runs.state import last_sign_of_life
from ml_pipeline.runtime.files import only_regular, open_regular
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_from, is_alive, this_process
from ml_pipeline.tuning.storage.optuna_internals import StoredTrial, fail_trial, set_attribute
from ml_pipeline.tuning.study_files import FOLDERS_ATTRIBUTE, HEARTBEAT_FILE, known_folders, trial_folder

BEAT_ATTRIBUTE = "heartbeat"
"""User attribute of a running trial: the content of the heartbeat file."""
_EVERY_S = 5.0
_BEATS_PER_STORED = 3  # written to the storage only every 15 s, since a journal keeps every line
_MOST_BYTES = 4096


class Beat(NamedTuple):
    """One heartbeat. trial: the number of the trial; beats: the number of earlier heartbeats."""

    trial: int
    process: ProcessIdentity
    beats: int

    def as_json(self) -> dict[str, Any]:
        return {"trial": self.trial, **self.process._asdict(), "beats": self.beats}


def beat_from(content: object) -> Beat | None:
    """The heartbeat in JSON content; None if it is something else."""
    if not isinstance(content, dict):
        return None
    try:
        process = identity_from(*(content.get(each) for each in ProcessIdentity._fields))
        return Beat(int(content["trial"]), process, int(content["beats"]))
    except (KeyError, TypeError, ValueError):
        return None


def read_beat(folder: Path) -> Beat | None:
    """The last heartbeat in a trial's folder; None if there is no readable one."""
    try:
        # Opened each time, so that a network disk asks its server instead of showing an older state.
        with open_regular(folder / HEARTBEAT_FILE) as file:
            return beat_from(json.loads(file.read(_MOST_BYTES)))
    except (OSError, ValueError):
        return None


def record_process(trial: StoredTrial, number: int) -> None:
    """Record in the storage that this process runs a trial; call it right after `ask`.

    If the process is killed before its heartbeat begins, other processes on this machine then notice it at once.
    """
    beat = Beat(number, this_process(), 0).as_json()
    set_attribute(trial, BEAT_ATTRIBUTE, beat)


class Heartbeat:
    """Within the block, a thread writes this process's heartbeat for one trial every few seconds.

    folder: the trial's first run folder; created if it is missing. number: the trial's. stored: the trial, if its
    storage serves machines that may not see the folder. on_lost: called once, from the thread, if others considered
    this process dead and gave the trial to another, as after a laptop's sleep: end the run without telling the study.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        stored: StoredTrial | None = None,
        on_lost: Callable[[], None] | None = None,
        every_s: float = _EVERY_S,
    ) -> None:
        self._path = folder / HEARTBEAT_FILE
        self._number = number
        self._stored = stored
        self._on_lost = on_lost
        self._every_s = every_s
        self._process = this_process()
        self._beats = 0
        self._written = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"heartbeat of trial {number}", daemon=True)
        self.lost = False
        """Whether the trial was given to another process."""

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # the run itself reports a full disk
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # never write through an existing link
            self._write(os.O_CREAT)
        self._store()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_ours():
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _go_on(self) -> None:
        while not self._ended.wait(self._every_s):
            self._beats += 1
            if self._taken_away():
                self.lost = True
                if self._on_lost is not None:
                    self._on_lost()
                return
            with contextlib.suppress(OSError):  # the run itself reports a full disk or a deleted folder
                self._write(0)
            if self._beats % _BEATS_PER_STORED == 0:
                self._store()

    def _taken_away(self) -> bool:
        """Whether another process now uses the folder, or ended the trial."""
        beat = read_beat(self._path.parent)
        if beat is not None:
            return self.lost or not self._is_own(beat)
        # A process that fails a trial removes its heartbeat; if the whole folder is gone, the run reports it.
        removed = self._written and self._path.parent.is_dir() and not self._path.exists()
        return self.lost or removed

    def _is_ours(self) -> bool:
        beat = read_beat(self._path.parent)
        return beat is not None and self._is_own(beat)

    def _is_own(self, beat: Beat) -> bool:
        return beat.trial == self._number and beat.process == self._process

    def _write(self, flags: int) -> None:
        """Write in place: a beat is one small write, and closing the file sends it to a network disk's server."""
        content = json.dumps(Beat(self._number, self._process, self._beats).as_json()).encode() + b"\n"
        descriptor = only_regular(self._path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | flags)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        self._written = True

    def _store(self) -> None:
        if self._stored is None:
            return
        beat = Beat(self._number, self._process, self._beats).as_json()
        try:
            set_attribute(self._stored, BEAT_ATTRIBUTE, beat)
        except UpdateFinishedTrialError:
            self.lost = not self._ended.is_set()
        except Exception:  # the storage is unavailable or full: the training thread reports it
            return


SILENCE_S = 45.0
"""A trial without a heartbeat for this long is lost."""
MAX_RETRIES = 3
"""A trial lost more often than this is not retried: it may itself kill its process."""
_LONGEST_LOOK_S = 15.0
_OF_ONE_ATTEMPT = (
    "void",
    "impossible",
    "reason",
    "global_step",
    "evaluations",
    "validation_sharpe",
    "host",
    "pid",
    "seconds",
    BEAT_ATTRIBUTE,
)  # attributes that a retry does not copy


@dataclass
class _Sighting:
    """The last heartbeats seen of a running trial. silent_s: how long they are unchanged, by this process's clock."""

    beats: tuple[Beat | None, Beat | None]
    seen: float
    silent_s: float = 0.0


class LostTrials:
    """Watches the running trials of a study; call `fail` every few seconds, or between trials.

    Silence is measured from the changes that this process sees, with its own clock, so the clocks of other machines do
    not matter. A dead process on this machine is noticed at once.
    """

    def __init__(
        self,
        study: optuna.Study,
        study_folder: Path,
        say: Callable[[str], None],
        *,
        max_retries: int = MAX_RETRIES,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._folder = study_folder
        self._say = say
        self._max_retries = max_retries
        self._silence_s = silence_s
        self._clock = clock
        self.seen: dict[int, _Sighting] = {}
        """The last sighting of each running trial."""

    def fail(self) -> list[int]:
        """Fail the lost trials and queue them again; return the numbers of those that this process failed."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        self.seen = {trial.number: each for trial in running if (each := self.seen.get(trial.number)) is not None}
        return [trial.number for trial in running if (why := self._why_lost(trial)) and self.fail_one(trial, why)]

    def _why_lost(self, trial: FrozenTrial) -> str | None:
        beats = self._beats_of(trial)
        processes = [beat.process for beat in beats if beat is not None]
        alive = [is_alive(process) for process in processes]
        if True in alive:
            return None  # it may be slow or suspended, and two processes must not write one folder
        if False in alive:
            process = processes[alive.index(False)]
            seen = last_sign_of_life(folders_of(trial, self._folder)[0])
            return (
                f"The process {process.pid} on {process.host} ended without a message ({seen}): it was killed, or its "
                "machine failed."
            )
        silent_s = self._silence(trial.number, beats)
        if silent_s < self._silence_s:
            return None
        who = f"Process {processes[0].pid} on {processes[0].host}" if processes else "The process that started it"
        return f"{who} sent no heartbeat for {silent_s:.0f} s."

    def _beats_of(self, trial: FrozenTrial) -> tuple[Beat | None, Beat | None]:
        """Its heartbeats in its folder and in the storage."""
        in_folder = read_beat(folders_of(trial, self._folder)[0])
        if in_folder is not None and in_folder.trial != trial.number:
            in_folder = None  # of the trial that this one continues
        return in_folder, beat_from(trial.user_attrs.get(BEAT_ATTRIBUTE))

    def _silence(self, number: int, beats: tuple[Beat | None, Beat | None]) -> float:
        now = self._clock()
        known = self.seen.get(number)
        if known is None or known.beats != beats:
            self.seen[number] = _Sighting(beats, now)
            return 0.0
        # A long gap between two checks may be a sleep of this machine, during which the others slept too.
        known.silent_s += min(now - known.seen, _LONGEST_LOOK_S)
        known.seen = now
        return known.silent_s

    def fail_one(self, trial: FrozenTrial, why: str) -> bool:
        """Fail a trial and queue it again; return whether this process was the first to do so."""
        history = [*_history(trial), trial.number]
        again = len(history) <= self._max_retries
        times = "once" if len(history) == 1 else f"{len(history)} times"
        reason = why if again else f"{why} It was lost {times}, and is not retried."
        try:
            fail_trial(self._study, trial, reason)
        except (UpdateFinishedTrialError, optuna.exceptions.StorageInternalError):
            return False  # its own process or another watcher was first
        for folder in folders_of(trial, self._folder):
            with contextlib.suppress(UserError, OSError):
                record_end_of_lost(folder, reason)
            with contextlib.suppress(OSError):
                (folder / HEARTBEAT_FILE).unlink()
        if again and _has_begun(trial, self._folder):
            self._study.add_trial(_repeated(trial, history, self._folder))
            self._say(f"Trial {trial.number} was lost, and is queued again to continue from its checkpoint. {why}")
        else:
            self._say(f"Trial {trial.number} was lost. {reason}")
        return True


_watched: dict[tuple[str, Path], dict[int, _Sighting]] = {}  # the sightings of this process, by study and its folder


def fail_lost_trials(study: optuna.Study, study_folder: Path, say: Callable[[str], None]) -> list[int]:
    """Fail the lost trials of a study with `LostTrials`; sightings are kept between the calls of a process."""
    watch = LostTrials(study, study_folder, say)
    key = (study.study_name, study_folder.absolute())
    watch.seen = _watched.get(key, {})
    try:
        return watch.fail()
    finally:
        _watched[key] = watch.seen


def fail_as_lost(study: optuna.Study, number: int, study_folder: Path, why: str, say: Callable[[str], None]) -> None:
    """Fail a trial of this process that cannot continue, as if its process was killed, and queue it again."""
    LostTrials(study, study_folder, say).fail_one(study.get_trials(deepcopy=False)[number], why)


def queue_again(study: optuna.Study, number: int, study_folder: Path) -> None:
    """Queue a stopped trial again, to continue from its checkpoint. It does not count as lost."""
    trial = study.get_trials(deepcopy=False)[number]
    study.add_trial(_repeated(trial, _history(trial), study_folder))


def folders_of(trial: FrozenTrial, study_folder: Path) -> list[Path]:
    """The run folders of a trial, at least one, which may not exist yet."""
    if named := known_folders(study_folder, trial.user_attrs):
        return named
    first = trial_folder(study_folder, trial.number)
    several = [each for each in study_folder.glob(f"{first.name}-*") if each.is_dir() and not each.is_symlink()]
    return [first] if first.is_dir() or not several else sorted(several)


def _history(trial: FrozenTrial) -> list[int]:
    found = trial.user_attrs.get("retry_history")
    return [int(each) for each in found] if isinstance(found, list) else []


def _has_begun(trial: FrozenTrial, study_folder: Path) -> bool:
    """Whether there is anything to retry, settings or a folder; otherwise a new trial is just as good."""
    has_settings = bool(trial.params) or "fixed_params" in trial.system_attrs
    return has_settings or any(folder.is_dir() for folder in folders_of(trial, study_folder))


def _repeated(trial: FrozenTrial, history: list[int], study_folder: Path) -> FrozenTrial:
    """A waiting trial with the same settings and reported values, which continues in the same folders."""
    first = trial.user_attrs.get("failed_trial", trial.number)
    retried: Mapping[str, Any] = {"failed_trial": first, "retry_history": history}
    kept = {name: value for name, value in trial.user_attrs.items() if name not in _OF_ONE_ATTEMPT}
    folders = [folder.name for folder in folders_of(trial, study_folder) if folder.is_dir()]
    if folders:
        kept.setdefault(FOLDERS_ATTRIBUTE, folders)
    return create_trial(
        state=TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={**kept, **retried},
        system_attrs={**trial.system_attrs, **retried},
        intermediate_values=trial.intermediate_values,
    )
