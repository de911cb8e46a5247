"""The sign of life of whoever works on a trial: a small file in the trial's folder, and the same in the storage.

A machine that shares the folder reads the file; another one reads the trial's attribute, where the storage is one that
machines without a common folder may use. Optuna's own heartbeat is not for trials that are asked for and told, and a
journal has none.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from optuna.exceptions import UpdateFinishedTrialError

from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_from, this_process
from ml_pipeline.runtime.regular_file import only_regular, open_regular
from ml_pipeline.tuning.study_files import HEARTBEAT_FILE

BEAT_ATTRIBUTE = "heartbeat"
"""User attribute of a running trial: what the heartbeat file holds."""
_EVERY_S = 5.0
_BEATS_PER_STORED = 3  # the storage is told every 15 s: a journal keeps each of these lines
_MOST_BYTES = 4096


class Beat(NamedTuple):
    """One sign of life. trial: the number of the trial; beats: how many there were before."""

    trial: int
    process: ProcessIdentity
    beats: int

    def as_json(self) -> dict[str, Any]:
        return {"trial": self.trial, **self.process._asdict(), "beats": self.beats}


def beat_from(content: object) -> Beat | None:
    """The sign of life that JSON holds; None where it is something else."""
    if not isinstance(content, dict):
        return None
    try:
        process = identity_from(*(content.get(each) for each in ProcessIdentity._fields))
        return Beat(int(content["trial"]), process, int(content["beats"]))
    except (KeyError, TypeError, ValueError):
        return None


def read_beat(folder: Path) -> Beat | None:
    """The last sign of life in a trial's folder; None where there is none that can be read."""
    try:
        # Opened anew each time: a network disk then asks its server, and shows no older state.
        with open_regular(folder / HEARTBEAT_FILE) as file:
            return beat_from(json.loads(file.read(_MOST_BYTES)))
    except (OSError, ValueError):
        return None


class StoredTrial(Protocol):
    """What of an `optuna.Trial` is needed to write to the storage from another thread."""

    storage: Any
    _trial_id: int


def record_process(trial: StoredTrial, number: int) -> None:
    """Write down in the storage that this process works on a trial: to be called as soon as it has been asked for.

    If it is killed before its heartbeat begins, whoever looks for lost trials on this machine knows at once.
    """
    beat = Beat(number, this_process(), 0).as_json()
    trial.storage.set_trial_user_attr(trial._trial_id, BEAT_ATTRIBUTE, beat)


class Heartbeat:
    """Within the block a thread gives a sign of life of this process every few seconds, for one trial.

    folder: the trial's first run folder; made where it is missing. number: the trial's. stored: the trial, where its
    storage serves machines that may not see the folder. on_lost: called once, from the thread, where others took this
    process for dead and the trial was given to another, as after a laptop's sleep: end the run, and tell nothing.
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
        with contextlib.suppress(OSError):  # on a full disk the run tells more
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # never through a link that lies there
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
            with contextlib.suppress(OSError):  # a full disk, or a folder that was deleted: the run says so
                self._write(0)
            if self._beats % _BEATS_PER_STORED == 0:
                self._store()

    def _taken_away(self) -> bool:
        """Whether another process works on the folder now, or the trial was ended by others."""
        beat = read_beat(self._path.parent)
        if beat is not None:
            return self.lost or not self._is_own(beat)
        # Whoever fails a trial removes its heartbeat; that a whole folder is gone, the run says itself.
        removed = self._written and self._path.parent.is_dir() and not self._path.exists()
        return self.lost or removed

    def _is_ours(self) -> bool:
        beat = read_beat(self._path.parent)
        return beat is not None and self._is_own(beat)

    def _is_own(self, beat: Beat) -> bool:
        return beat.trial == self._number and beat.process == self._process

    def _write(self, flags: int) -> None:
        """In place: a beat is one small write, and closing hands it to a network disk's server."""
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
            self._stored.storage.set_trial_user_attr(self._stored._trial_id, BEAT_ATTRIBUTE, beat)
        except UpdateFinishedTrialError:
            self.lost = not self._ended.is_set()
        except Exception:  # a storage that is away or full: whoever trains is told
            return
