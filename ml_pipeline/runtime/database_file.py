"""A database file: whatever goes wrong with it becomes one sentence that names the file."""

import sqlite3
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ml_pipeline.config.errors import UserError

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="_Cursor")


def open_database(path: Path, *, timeout_s: float, writes: bool = True) -> "DatabaseFile":
    """The file, made where there is none, without transactions of its own. Raises sqlite3.Error.

    writes: otherwise the file must be there, and is only read. timeout_s: how long another process is waited for. What
    fails until `opened` raises sqlite3.Error as well, and what fails later UserError.
    """
    address = f"{path.absolute().as_uri()}?mode={'rwc' if writes else 'ro'}"
    database = sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None, factory=DatabaseFile)
    database.path = path
    return database


class DatabaseFile(sqlite3.Connection):
    """Raises UserError once it is opened, where the disk is full or the file is damaged."""

    path: Path
    _opened = False

    def opened(self) -> None:
        """The file is what it should be: from now on, errors become sentences."""
        self._opened = True

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor)

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def failure(self, error: sqlite3.Error) -> Exception:
        """What to raise for an error of the file."""
        if not self._opened:
            return error
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            return UserError(f"{self.path} is damaged: {error}. Put a whole copy of it back, or name another file.")
        return UserError(f"{self.path} cannot be read or written: {error}. Make room, then start again.")


def _told(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Raises `failure` of the connection in place of sqlite3.Error."""

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
