"""Why a process ended: its exit code in words, and the last lines of its output."""

import os
import re
import signal
from pathlib import Path

from ml_pipeline.config.errors import excerpt
from ml_pipeline.runtime.files import open_regular

_MOST_BYTES = 16_384
_MOST_LINES = 6
_LONGEST = 1_000
_PROGRAM = re.compile(r"^ml-pipeline [a-z]+: ", re.MULTILINE)  # prefix of a command's errors


def last_words(output: Path, *, since_byte: int = 0) -> str:
    """The last lines of a process's output, without the program's name; of a traceback, only the last line.

    output: the file. since_byte: size of the file when the process started. Empty if there is no output.
    """
    said = tail(output, since_byte=since_byte)
    lines = [line.rstrip() for line in without_program(said).splitlines() if line.strip()]
    if any(line.startswith("Traceback (") for line in lines):
        return excerpt(lines[-1], _LONGEST)
    return excerpt("\n".join(lines[-_MOST_LINES:]), _LONGEST)


def without_program(text: str) -> str:
    """
    >>> without_program("ml-pipeline train: There is no such thing.")
    'There is no such thing.'
    """
    return _PROGRAM.sub("", text)


def tail(path: Path, *, since_byte: int = 0, most_bytes: int = _MOST_BYTES) -> str:
    """The end of a text file, in complete lines; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(since_byte, size - most_bytes)
            file.seek(begin)
            text = file.read(most_bytes).decode(errors="replace")
    except OSError:
        return ""
    return text.partition("\n")[2] if begin > since_byte else text


def how_it_ended(exit_code: int) -> str:
    """An exit code in words; -N means killed by signal N.

    >>> how_it_ended(-9), how_it_ended(3)
    ('killed by SIGKILL', 'ended with exit code 3')
    """
    if exit_code < 0:
        try:
            return f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"
