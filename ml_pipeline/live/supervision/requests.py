"""Requests to stop or flatten a session: the file `request` in its folder, and calls from Python.

A request remains until the session has done it. If the process is killed before, its next start finds the request.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.live.session_files import DECISION_FILE, REQUEST_FILE
from ml_pipeline.runtime.files import alone, open_regular, written_whole

Asked = Literal["stop", "flatten"]
_MOST_BYTES = 1_000
# A file written by hand is empty for a moment.
_LOOKS, _BETWEEN_LOOKS_S = 5, 0.02


class Request(NamedTuple):
    """A request to stop and hold positions, or to close them all and stop. why: a sentence."""

    what: Asked
    why: str


def ask(folder: Path, what: Asked) -> None:
    """Ask the session in a folder to stop or to flatten; it begins within about a second, and then ends.

    A stop does not replace an earlier request to flatten. Raises UserError if the folder is missing or not writable.
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


def leave_request(folder: Path, what: Asked) -> None:
    """As `ask`, for the next start. On a full disk, the request takes the place of decision.json, which needs no room.

    Raises UserError if neither can be done.
    """
    try:
        ask(folder, what)
    except UserError as error:
        try:
            with open(folder / DECISION_FILE, "r+", encoding="utf-8") as file:
                file.write(f"{what}\n")
                file.truncate()
            os.replace(folder / DECISION_FILE, folder / REQUEST_FILE)
        except OSError:
            raise error from None


class Requests:
    """The requests to the session in a folder, from this and other processes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REQUEST_FILE
        self._asked: dict[Asked, str] = {}

    def ask(self, what: Asked, why: str) -> None:
        """Make a request from this process. Takes no lock, so signal handlers and any thread may call it."""
        self._asked.setdefault(what, why)

    def poll(self) -> Request | None:
        """The current request, or None; costs one stat call if there is none. Flatten takes precedence over stop.

        It is returned until `done`. A file with any other content is a request to stop, and `why` quotes it.
        """
        found = self._from_file()
        if found is not None and found.what == "flatten":
            return found
        for what in ("flatten", "stop"):
            if what in self._asked:
                return Request(what, self._asked[what])
        return found

    def done(self, what: Asked) -> Request | None:
        """Remove a request that the session has done, so that the next start does not repeat it.

        Returns a request to flatten that arrived after a stop. Raises UserError if the file cannot be removed.
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
                f"{path} cannot be removed: {error.strerror}; remove it before you restart the session."
            ) from error
        return None

    def _from_file(self) -> Request | None:
        if not os.path.lexists(self._path):
            return None
        path = shown_path(self._path)
        try:
            word = _settled_word_in(self._path)
        except FileNotFoundError:  # removed in the meantime
            return None
        except OSError as error:
            return Request("stop", f"{path} cannot be read ({error.strerror}), which counts as a request to stop.")
        if word == "flatten":
            return Request("flatten", "A user requested to close all positions and stop.")
        if word == "stop":
            return Request("stop", "A user requested a stop.")
        return Request(
            "stop", f'{path} contains "{in_one_line(word, 40)}", not stop or flatten, which counts as a stop.'
        )


def _settled_word_in(path: Path) -> str:
    """The word in a file, read again for up to a tenth of a second until it is a known request."""
    word = _word_in(path)
    for _ in range(_LOOKS):
        if word in get_args(Asked):
            break
        time.sleep(_BETWEEN_LOOKS_S)
        word = _word_in(path)
    return word


def _word_in(path: Path) -> str:
    """The content of a file, stripped and in lower case. Raises OSError if it cannot be read."""
    with open_regular(path, follow_links=False) as file:
        return file.read(_MOST_BYTES).decode(errors="replace").strip().lower()
