"""A text file that grows by whole lines, and that a resumed run can cut back to where it goes on."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, TextIO

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.files import only_regular, read_regular, written_whole

_MOST_BYTES = 2**31
"""Of a metrics.jsonl; an iteration takes some 2,000."""


def read_lines(path: Path) -> list[str]:
    """The whole lines of a file, none where it is missing; a last line that a power cut tore is left out."""
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return text.split("\n")[:-1]


class AppendedFile:
    """An open file of text that only grows. What is added is on its way to the disk, not only in our memory.

    remedy: what a person may do where the disk is full. Whoever derives from this opens `_file`.
    """

    remedy: ClassVar[str]
    path: Path
    _file: TextIO

    def add(self, text: str) -> None:
        """Add whole lines. Raises UserError where the disk does not take them; the file is closed then."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # it tries to flush once more
                self._file.close()
            raise self.failure(error) from error

    def close(self) -> None:
        self._file.close()

    def failure(self, error: OSError) -> UserError:
        return UserError(f"{self.path} cannot be written: {error.strerror}; {self.remedy}.")


class LineFile(AppendedFile):
    """An open file of lines. A line is on its way to the disk when `append` returns, not only in our memory."""

    remedy = "make room, or choose another folder"

    def __init__(self, path: Path, lines: Iterable[str] = (), *, replace: bool) -> None:
        """Begin with `lines`, and unless `replace` only where no other lines would be lost.

        Raises UserError where the file cannot be written, or holds other lines and must be kept.
        """
        self.path = path
        lines = list(lines)
        if not replace and read_lines(path) not in ([], lines):
            raise UserError(f"{path} is there already and would be lost; resume its run, or choose another folder.")
        try:
            if path.exists():
                with written_whole(path, "w", encoding="utf-8", newline="\n") as file:
                    file.writelines(f"{line}\n" for line in lines)
                self._file = open(path, "a", encoding="utf-8", newline="\n", opener=only_regular)  # noqa: SIM115
            else:  # nothing is there that a power cut could take, so nobody waits for the disk: 10 ms a file
                self._file = path.open("x", encoding="utf-8", newline="\n")
                self.append(lines)
        except OSError as error:
            raise self.failure(error) from error

    def append(self, lines: Iterable[str]) -> None:
        """Add lines. Raises UserError where the disk does not take them; the file is closed then."""
        self.add("".join(f"{line}\n" for line in lines))
