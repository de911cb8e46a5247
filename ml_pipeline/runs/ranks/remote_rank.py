"""What runs on a machine of a cluster for one rank: it starts the rank's process and passes on its output and its end.

It knows nothing of Ray, whose actor it becomes in `ray_launcher.py`; calls may come from several threads.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Literal, NamedTuple

Stream = Literal["stdout", "stderr"]

_CHUNK = 1 << 16  # bytes read at once
_MOST_CHUNKS = 64  # on their way; a rank that writes more waits until they are fetched
# Linux kills the rank with the process that started it, however that ended. The request stands before the program is
# loaded, and not in a `preexec_fn`, which is unsafe beside the threads of a cluster's worker.
_END_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\n"  # PR_SET_PDEATHSIG
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)
_END_GRACE_S = 5.0  # after a rank's end, for output that its own children still hold open


class News(NamedTuple):
    """What a rank's process wrote since the last call, and how it ended."""

    output: list[tuple[Stream, bytes]]
    exit_code: int | None
    """None while it runs, or while there is more output; minus the signal where a signal ended it."""


class RemoteRank:
    """One rank's process, on the machine of this object. On Linux it is killed with this object's process."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[tuple[Stream, bytes]] = queue.Queue(_MOST_CHUNKS)
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], *, folder: str) -> None:
        """Start `python ARGUMENTS` with these environment variables besides this process's own.

        folder: where it runs, if this machine has that folder; otherwise where this process runs.
        """
        command = [sys.executable, *arguments]
        if sys.platform == "linux":
            command = [sys.executable, "-S", "-E", "-c", _END_WITH_PARENT, str(os.getpid()), *command]
        with _no_signal_blocked():
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                cwd=folder if os.path.isdir(folder) else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes: list[tuple[Stream, IO[bytes]]] = [("stdout", self._process.stdout), ("stderr", self._process.stderr)]
        for stream, pipe in pipes:
            reader = threading.Thread(target=self._read, args=(stream, pipe), daemon=True)
            reader.start()
            self._readers.append(reader)
        threading.Thread(target=self._tell_end, daemon=True).start()

    def news(self, timeout_s: float) -> News:
        """What was written since the last call; waits so long for something to be told."""
        assert self._process is not None
        output = self._written(timeout_s if self._process.poll() is None else 0.0)
        exit_code = self._process.poll()
        if output or exit_code is None:
            return News(output, None)
        for reader in self._readers:
            reader.join(_END_GRACE_S)
        output = self._written(0.0)
        return News(output, None if output else exit_code)

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def close(self) -> None:
        """Wait for the end of a rank that has ended or was killed. May be called twice."""
        if self._process is not None:
            self._process.wait()
            for reader in self._readers:
                reader.join(_END_GRACE_S)

    def _written(self, timeout_s: float) -> list[tuple[Stream, bytes]]:
        output = []
        with contextlib.suppress(queue.Empty):
            output.append(self._chunks.get(timeout=timeout_s) if timeout_s else self._chunks.get_nowait())
            while True:
                output.append(self._chunks.get_nowait())
        return [(stream, chunk) for stream, chunk in output if chunk]

    def _read(self, stream: Stream, pipe: IO[bytes]) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), _CHUNK):
                self._chunks.put((stream, chunk))

    def _tell_end(self) -> None:
        """Let whoever waits for output know that the process has ended."""
        assert self._process is not None
        self._process.wait()
        self._chunks.put(("stdout", b""))


@contextlib.contextmanager
def _no_signal_blocked() -> Iterator[None]:
    """Within the block this thread blocks no signal, so that a process that it starts does not either: threads of a
    cluster's worker block Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    usual = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
