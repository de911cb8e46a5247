"""stdout and stderr of a process, and what happens where one of them can no longer be written.

The reader of a pipe may leave, a terminal may be closed, a disk may be full. From the first write that fails, the
stream leads to os.devnull, for everybody in the process who writes to it.
"""

import contextlib
import io
import os
import select
import sys
from typing import Any, TextIO, cast


class OutputLost(Exception):
    """stdout could not be written, in a process that is not to outlive its reader; the cause is the OSError."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.reader_left = isinstance(error, BrokenPipeError)


def guard_standard_streams(*, outlive_readers: bool) -> None:
    """Have prints go on whatever they print, and whoever reads them.

    A character that the encoding lacks becomes a question mark. A stream that is closed takes what is printed and
    drops it, as does one from the first write that fails. outlive_readers: otherwise that write raises OutputLost
    where it is stdout. May be called again, to change that. Streams that others put in place stay as they are.
    """
    sys.stdout = _guarded(sys.stdout, 1, fails=not outlive_readers)
    sys.stderr = _guarded(sys.stderr, 2, fails=False)


class _Output(io.FileIO):
    """A file descriptor that takes all that is written, or leads to os.devnull from then on."""

    fails = False
    """Whether the write that does not succeed raises OutputLost."""

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                written = super().write(left)
                if written is None:  # somebody made it non-blocking, and its reader is slow
                    select.select([], [self], [])
                else:
                    left = left[written:]
        except OSError as error:
            _lead_to_nothing(self.fileno())
            if self.fails:
                raise OutputLost(error) from error
        return size


def _guarded(stream: TextIO | None, descriptor: int, *, fails: bool) -> TextIO:
    if stream is None:  # it was closed before this process began
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            return open(os.devnull, "w")  # the descriptor is another file's by now
        _lead_to_nothing(descriptor)
        stream = open(descriptor, "w", closefd=False)  # noqa: SIM115 - open for as long as the process
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="replace")
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if isinstance(raw, _Output):
        raw.fails = fails
        return stream
    if type(raw) is not io.FileIO or raw.fileno() != descriptor:
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    output = _Output(descriptor, "w", closefd=False)
    output.fails = fails
    return io.TextIOWrapper(
        cast(Any, output) if stream.write_through else io.BufferedWriter(output),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _lead_to_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    if nothing != descriptor:
        os.dup2(nothing, descriptor)
        os.close(nothing)
