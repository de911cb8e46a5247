"""A SQLite file whose errors are sentences that name the file."""

import errno
import sqlite3
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ml_pipeline.config.errors import UserError

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_DISK_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="_Cursor")


def open_database(path: Path, *, timeout_s: float, writes: bool = True) -> "DatabaseFile":
    """Open the file in autocommit mode, and create it if it is missing. Raises sqlite3.Error.

    Until `opened` is called, statements raise sqlite3.Error too; afterwards UserError.
    writes: if False, the file must exist and is opened read-only. timeout_s: how long to wait for other processes.
    """
    address = f"{path.absolute().as_uri()}?mode={'rwc' if writes else 'ro'}"
    database = sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None, factory=DatabaseFile)
    database.path = path
    return database


class DatabaseFile(sqlite3.Connection):
    """A connection that raises UserError, once opened, if the disk is full or the file is damaged."""

    path: Path
    _opened = False

    def opened(self) -> None:
        """Call this once the content of the file is known to be valid: from now on, errors become UserErrors."""
        self._opened = True

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor)

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def failure(self, error: sqlite3.Error) -> Exception:
        """The exception to raise for a SQLite error."""
        if not self._opened:
            return error
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            return UserError(f"{self.path} is damaged: {error}. Restore it from a backup, or name another file.")
        return UserError(f"{self.path} cannot be read or written: {error}. Free disk space, then start again.")


def _told(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Raise the connection's `failure` instead of sqlite3.Error."""

    @wraps(method)
    def telling(self: C, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            return method(self, *arguments, **named)
        except sqlite3.Error as error:
            raise self.connection.failure(error) from error

    return telling


class _Cursor(sqlite3.Cursor):
    connection: DatabaseFile

    @_told
    def execute(self, *arguments: Any) -> Self:
        return super().execute(*arguments)

    @_told
    def executemany(self, *arguments: Any) -> Self:
        return super().executemany(*arguments)

    @_told
    def fetchone(self) -> Any:
        return super().fetchone()

    @_told
    def fetchall(self) -> list[Any]:
        return super().fetchall()

    @_told
    def __next__(self) -> Any:
        return super().__next__()


def disk_failed(error: BaseException | None) -> bool:
    """Whether a full or failing disk caused the error; it may have room again later."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return True
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK_CODES:
            return True
        error = error.__cause__
    return False
