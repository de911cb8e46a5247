"""The kill switch of a session: the file `request` in its folder, and calls from Python.

A request waits until the session has done it, so that a process that is killed meanwhile finds it when it starts again.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.live.session_files import REQUEST_FILE
from ml_pipeline.runtime.files import alone, open_regular, written_whole

Asked = Literal["stop", "flatten"]
_MOST_BYTES = 1_000
# A file that somebody writes by hand is empty for a moment.
_LOOKS, _BETWEEN_LOOKS_S = 5, 0.02


class Request(NamedTuple):
    """What a session is asked for: to stop and hold its positions, or to close them all and stop. why: a sentence."""

    what: Asked
    why: str


def ask(folder: Path, what: Asked) -> None:
    """Ask the session of a folder to stop or to flatten; it does so within a second or so, and then ends.

    A stop does not take back a request to flatten. Raises UserError where the folder is missing or cannot be written.
    """
    check_choice("request", what, get_args(Asked))
    if not folder.is_dir():
        raise UserError(f"There is no session in {shown_path(folder)}; name a session that trades.")
    path = folder / REQUEST_FILE
    try:
        with alone(path.with_name(f"{REQUEST_FILE}.lock")):
            with contextlib.suppress(FileNotFoundError):
                if what == "stop" and _word_in(path) == "flatten":
                    return
            with written_whole(path, "w", encoding="utf-8") as file:
                file.write(what + "\n")
    except OSError as error:
        raise UserError(f"{shown_path(path)} cannot be written: {error.strerror}.") from error


class Requests:
    """What is asked of the session in a folder, by anybody."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REQUEST_FILE
        self._asked: dict[Asked, str] = {}

    def ask(self, what: Asked, why: str) -> None:
        """Ask from this process. Takes no lock, so that a signal handler and any thread may call it."""
        self._asked.setdefault(what, why)

    def poll(self) -> Request | None:
        """What is asked, at the cost of one stat where nothing is; to flatten counts before to stop.

        It is asked until `done`. A file that holds something else asks to stop, and the sentence tells so.
        """
        found = self._from_file()
        if found is not None and found.what == "flatten":
            return found
        for what in ("flatten", "stop"):
            if what in self._asked:
                return Request(what, self._asked[what])
        return found

    def done(self, what: Asked) -> Request | None:
        """Note that the session did it, so that the next one does not; a request to flatten that came meanwhile.

        Raises UserError where the file cannot be removed.
        """
        left = self.poll()
        if what == "stop" and left is not None and left.what == "flatten":
            return left
        self._asked.clear()
        try:
            if self._path.is_dir() and not self._path.is_symlink():
                self._path.rmdir()
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            path = shown_path(self._path)
            raise UserError(
                f"{path} cannot be removed: {error.strerror}; remove it before the session starts again."
            ) from error
        return None

    def _from_file(self) -> Request | None:
        if not os.path.lexists(self._path):
            return None
        path = shown_path(self._path)
        try:
            word = _settled_word_in(self._path)
        except FileNotFoundError:  # somebody took it back
            return None
        except OSError as error:
            return Request("stop", f"{path} cannot be read ({error.strerror}), which is taken as a request to stop.")
        if word == "flatten":
            return Request("flatten", "Asked to close all positions and to stop.")
        if word == "stop":
            return Request("stop", "Asked to stop.")
        return Request(
            "stop", f'{path} holds "{in_one_line(word, 40)}" in place of stop or flatten, which is taken as stop.'
        )


def _settled_word_in(path: Path) -> str:
    """What a file says, once it says something that is asked for, or still does not after a tenth of a second."""
    word = _word_in(path)
    for _ in range(_LOOKS):
        if word in get_args(Asked):
            break
        time.sleep(_BETWEEN_LOOKS_S)
        word = _word_in(path)
    return word


def _word_in(path: Path) -> str:
    """What a file says, without blanks and in small letters. Raises OSError where it cannot be read."""
    with open_regular(path, follow_links=False) as file:
        return file.read(_MOST_BYTES).decode(errors="replace").strip().lower()
