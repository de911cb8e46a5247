"""Keeps a process running if its stdout or stderr can no longer be written.

The reader of a pipe may exit, a terminal may close, a disk may be full. After the first failed write, the stream is
redirected to os.devnull for the whole process.
"""

import contextlib
import io
import os
import select
import sys
from typing import Any, TextIO, cast


class OutputLost(Exception):
    """stdout could not be written, in a process that should end with its reader; the cause is the OSError."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.reader_left = isinstance(error, BrokenPipeError)


def guard_standard_streams(*, outlive_readers: bool) -> None:
    """Make printing never fail, except as said below.

    A character that the encoding lacks becomes a question mark. A stream that is closed, or whose write has failed,
    drops its output. outlive_readers: if False, the first failed write to stdout raises OutputLost; call again to
    change it. Streams that other code has replaced are left alone.
    """
    sys.stdout = _guarded(sys.stdout, 1, fails=not outlive_readers)
    sys.stderr = _guarded(sys.stderr, 2, fails=False)


class _Output(io.FileIO):
    """A file descriptor that writes everything, or is redirected to os.devnull after a failure."""

    fails = False
    """Whether a failed write raises OutputLost."""

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                written = super().write(left)
                if written is None:  # the descriptor is non-blocking, and its reader is slow
                    select.select([], [self], [])
                else:
                    left = left[written:]
        except OSError as error:
            _lead_to_nothing(self.fileno())
            if self.fails:
                raise OutputLost(error) from error
        return size


def _guarded(stream: TextIO | None, descriptor: int, *, fails: bool) -> TextIO:
    if stream is None:  # it was closed before this process started
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            return open(os.devnull, "w")  # another file has the descriptor by now
        _lead_to_nothing(descriptor)
        stream = open(descriptor, "w", closefd=False)  # noqa: SIM115 - open until the process ends
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
