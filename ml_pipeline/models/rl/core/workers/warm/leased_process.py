"""The process of a leased worker, as its lessee sees it: somebody else started it and asks how it ended."""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Protocol

from ml_pipeline.models.rl.core.workers.warm import messages

_LOOK_S = 0.02


class Exits(Protocol):
    """Knows how leased processes ended."""

    def of(self, worker: int) -> int | None:
        """The exit code; None if nobody knows."""

    def forget(self, worker: int) -> None:
        """Is told of each process that was given back."""


class LeasedProcess:
    """Alive until it has given its environments up, or has ended.

    Until this object is closed, the pool lends the process to nobody else: signals reach no other lessee's worker.
    pidfd: of the process. lifeline: a connection to it. exits: of all processes of the lease.
    """

    def __init__(self, number: int, pid: int, pidfd: int, lifeline: socket.socket, exits: Exits) -> None:
        self.pid: int | None = pid
        self._number = number
        self._pidfd = pidfd
        self._lifeline = messages.close_in_forks(lifeline)
        self._exits = exits
        self._has_returned = False
        self._exitcode: int | None = None

    def is_here(self, timeout_s: float) -> bool:
        """Whether it says in time that it is ready for `hand_over`; it may have been killed while it was idle."""
        self._lifeline.settimeout(timeout_s)
        try:
            return "here" in messages.receive(self._lifeline)[0]
        except (EOFError, OSError):
            return False
        finally:
            self._lifeline.settimeout(None)

    def hand_over(self, files: Sequence[int], n_bytes: int) -> None:
        """Gives it the files through which it is driven. n_bytes: of the memory, which is the fourth of them."""
        own = os.pidfd_open(os.getpid())
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then it is dead, which the pool notices
                messages.send(self._lifeline, {"n_bytes": n_bytes}, [*files, own, 1, 2])
        finally:
            os.close(own)

    @property
    def exitcode(self) -> int | None:
        """0 once it has given its environments up; else how it ended, None while it runs or if nobody knows."""
        if not self._has_returned and self._exitcode is None and not self.is_alive():
            self._exitcode = 0 if self._has_returned else self._exits.of(self._number)
        return 0 if self._has_returned else self._exitcode

    def is_alive(self) -> bool:
        """Whether it still has environments of this process."""
        if self._pidfd < 0 or self._has_returned or self._ready(self._pidfd, 0.0):
            return False
        if self._ready(self._lifeline.fileno(), 0.0):
            with contextlib.suppress(EOFError, OSError):
                self._has_returned = "returned" in messages.receive(self._lifeline)[0]
        return not self._has_returned

    def join(self, timeout: float | None = None) -> None:
        """Waits until it is not alive any more."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            self._ready(self._pidfd, _LOOK_S)

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Gives the process back to its pool; may be called twice."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
            self._lifeline.close()
            self._exits.forget(self._number)

    @staticmethod
    def _ready(descriptor: int, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
