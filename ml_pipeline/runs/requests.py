"""request.json: a change requested of a running run, which applies it between two iterations.

Any process may write one. A new request is merged into one that is still waiting; if both name a setting, the later
value counts. A request made after the last iteration waits until the run is resumed.
"""

import contextlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.env_schedule import MOST_ENVS, check_n_envs
from ml_pipeline.config.errors import UserError, excerpt, nearest
from ml_pipeline.runtime.files import alone, written_whole

if TYPE_CHECKING:
    from ml_pipeline.runs.ranks.context import RankContext  # with torch

REQUEST_FILE = "request.json"
_LOCK_FILE = "request.json.lock"
_TAKEN_FILE = "request.json.taken"
_MOST_BYTES = 1 << 16

WorkerChoice = Literal["auto", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The changes requested of a run; None: no change. Raises UserError if a value is invalid.

    n_workers: the new number of worker processes, 0 for none; "auto" chooses once, "dynamic" keeps adjusting.
    n_envs: the new number of environments.

    >>> Request(n_workers=4)
    Request(n_workers=4, n_envs=None)
    """

    n_workers: int | WorkerChoice | None = None
    n_envs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n_workers, str):
            if self.n_workers not in get_args(WorkerChoice):
                raise UserError(
                    f'n_workers must be a whole number, "auto" or "dynamic", but got "{excerpt(self.n_workers, 100)}".'
                )
        elif self.n_workers is not None:
            check_count("n_workers", self.n_workers, minimum=0)
            if self.n_workers > MOST_ENVS:
                most = f"{MOST_ENVS:,}, one for each of the most environments"
                raise UserError(f"n_workers must be at most {most}, but got {excerpt(str(self.n_workers), 100)}.")
        if self.n_envs is not None:
            check_n_envs("n_envs", self.n_envs)
        if self.n_workers is None and self.n_envs is None:
            raise UserError("A request must name n_workers or n_envs, but names neither.")

    def named(self) -> dict[str, Any]:
        """The requested settings, with their values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def write_request(folder: Path, *, n_workers: int | WorkerChoice | None = None, n_envs: int | None = None) -> Request:
    """Request a change of the run that writes `folder`, and return all waiting changes.

    The run applies them at the end of its iteration, and logs the outcome in run.log. Several processes may call this
    at once: no request is lost, but of two values of one setting the later counts. Raises UserError if a value is
    invalid, or the folder is missing or cannot be written.
    """
    request = Request(n_workers=n_workers, n_envs=n_envs)
    if not folder.is_dir():
        raise UserError(f"There is no run folder {folder}; pass the folder of a run that is training.")
    path = folder / REQUEST_FILE
    try:
        with alone(folder / _LOCK_FILE):
            if os.path.lexists(path):
                # Overwrite an invalid file; a request that the run has just taken cannot be merged.
                with contextlib.suppress(UserError, FileNotFoundError):
                    request = Request(**{**_read(path).named(), **request.named()})
            with written_whole(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(request.named()) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error
    return request


class Requests:
    """The requests to the run that writes a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REQUEST_FILE
        self._refused: tuple[int, int] | None = None  # inode and time of a file that could not be removed

    def take(self) -> Request | None:
        """The request made since the last call; None, at the cost of one stat, without one.

        Raises UserError once if the file is not a request; removes it if possible.
        """
        try:
            found = os.lstat(self._path)
        except OSError:
            return None
        identity = found.st_ino, found.st_mtime_ns
        if identity == self._refused:
            return None
        taken = self._path.with_name(_TAKEN_FILE)
        try:
            # Rename before reading: a request written from here on waits for the next call.
            os.replace(self._path, taken)
            return _read(taken)
        except FileNotFoundError:  # it was withdrawn
            return None
        except OSError as error:
            self._refused = identity
            raise UserError(f"{self._path} cannot be taken: {error.strerror}; remove it and request again.") from error
        finally:
            _remove(taken)


class RequestHandling:
    """Applies the requests to a run; called between two iterations.

    handlers: by setting, the function that changes it: takes the requested value, reports the outcome, and raises
    UserError to refuse.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], *, ranks: "RankContext") -> None:
        """say: receives refusals; the handlers report successes. ranks: all apply the requests of the first."""
        self.handlers: dict[str, Callable[[Any], None]] = {}
        self._requests = Requests(folder)
        self._say = say
        self._ranks = ranks

    def __call__(self) -> None:
        asked: dict[str, Any] = self._ranks.first("what is asked of the run", self._take)
        for name, value in asked.items():
            if name not in self.handlers:
                self._say(f"The request for {name} = {value} is refused: this run cannot change it while it trains.")
                continue
            try:
                self.handlers[name](value)
            except UserError as error:
                self._say(f"The request for {name} = {value} is refused: {error}")

    def _take(self) -> dict[str, Any]:
        """The requested settings; reports an invalid request."""
        try:
            request = self._requests.take()
        except UserError as error:
            self._say(str(error))
            return {}
        return {} if request is None else request.named()


def _read(path: Path) -> Request:
    """The request in a file. Raises UserError if it holds none, OSError if it cannot be read."""
    ignored = f"{path.with_name(REQUEST_FILE)} is ignored: "
    if not stat.S_ISREG(os.lstat(path).st_mode):  # a pipe would block the run, and a link leads elsewhere
        raise UserError(f"{ignored}it is not a regular file.")
    with open(path, "rb") as file:
        data = file.read(_MOST_BYTES)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f'{ignored}it must hold a JSON object such as {{"n_workers": 4}}.')
    names = [field.name for field in fields(Request)]
    for name in values.keys() - {*names}:
        raise UserError(f'{ignored}it asks for "{excerpt(name, 100)}". {nearest(name, names)}')
    try:
        return Request(**values)
    except UserError as error:
        raise UserError(f"{ignored}{error}") from None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
