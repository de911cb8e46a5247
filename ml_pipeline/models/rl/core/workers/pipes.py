"""The two one-way pipes between the trainer and one worker.

Every step sends a note: 8 bytes, with a command number and a code. Other data is sent as a message: bytes of any
length, after a note that announces it. A round trip through raw pipes took 2.8 µs here, through an eventfd 2.6, through
a semaphore 2.3, through `Connection` objects 11.9; of these, only pipes report at once that the other end is closed.

If each end has its own core, a reader may spin for a while before it sleeps: between the two cores of a virtual machine
a round trip then takes 2.6 µs instead of 60, since no sleeping core must be woken. It makes a system call each time
(0.4 µs), so that it needs no assumption on the order of memory accesses.

A pipe stays open as long as any process holds it, such as one that an environment forked. So the trainer never relies
on the end of a pipe alone: if a transfer stalls, it checks whether the worker still runs.
"""

import multiprocessing.connection
import os
import select
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

# Codes of a worker's notes. The trainer's notes carry a Command, plus WITH_MESSAGE if a message follows.
DONE, DONE_FINISHED, DONE_WITH_MESSAGE = 0, 1, 2
WITH_MESSAGE = 128

NOTE_BYTES = 8
_LENGTH_BYTES = 8  # before a message
_JOINED_BYTES = 1 << 16  # a message up to this length is copied and written together with its length
_STALL_S = 0.25  # interval at which a stalled transfer checks whether the worker still runs
_CODE_BITS = 8
_RAW = os.name == "posix"

_let_others_run = getattr(os, "sched_yield", lambda: None)

_trainer_ends: "weakref.WeakSet[WorkerLink]" = weakref.WeakSet()


class WorkerLink:
    """One end of the two pipes. The end in the trainer is closed in every process that it forks."""

    def __init__(self, inbox: Connection, outbox: Connection, *, worker_runs: Callable[[], bool] | None = None) -> None:
        """worker_runs: whether the worker's process still runs; None at the worker's end."""
        self._inbox = inbox
        self._outbox = outbox
        self._worker_runs = worker_runs
        if _RAW:
            self._in_fd = inbox.fileno()
            self._out_fd = outbox.fileno()
            self._poller = select.poll()
            self._poller.register(self._in_fd, select.POLLIN)
        if worker_runs is not None:
            _trainer_ends.add(self)
            if _RAW:
                os.set_blocking(self._in_fd, False)
                os.set_blocking(self._out_fd, False)

    def note(self, number: int, code: int) -> None:
        """Sends a note. Raises OSError if the other end is closed."""
        data = (number << _CODE_BITS | code).to_bytes(NOTE_BYTES, "little")
        if _RAW:
            os.write(self._out_fd, data)  # atomic: far below PIPE_BUF
        else:
            self._outbox.send_bytes(data)

    def read_note(self) -> tuple[int, int]:
        """Waits for a note: its number and code. Raises EOFError if the other end is closed."""
        if _RAW:
            try:
                data = os.read(self._in_fd, NOTE_BYTES)
            except BlockingIOError:
                self._wait_to_read()
                data = os.read(self._in_fd, NOTE_BYTES)
        else:
            data = self._inbox.recv_bytes()
        if not data:
            raise EOFError
        value = int.from_bytes(data, "little")
        return value >> _CODE_BITS, value & ((1 << _CODE_BITS) - 1)

    def wait(self, timeout_s: float) -> bool:
        """Whether data arrives, or the other end is closed, within the time."""
        if _RAW:
            return bool(self._poller.poll(timeout_s * 1000))
        return self._inbox.poll(timeout_s)

    def spin(self, time_s: float) -> bool:
        """`wait` without sleep: polls in a loop, which keeps a core busy.

        It yields the core after each poll: if two trainings share two cores, this makes both three times as fast.
        """
        if not _RAW:
            return False
        can_read, clock, let_others_run = self._poller.poll, time.perf_counter, _let_others_run
        end = clock() + time_s
        while not can_read(0):
            let_others_run()
            if clock() > end:
                return False
        return True

    def send(self, message: bytes) -> None:
        """Sends a message; waits while a long one is not being read. Raises OSError if the other end is closed."""
        if not _RAW:
            self._outbox.send_bytes(message)
            return
        length = len(message).to_bytes(_LENGTH_BYTES, "little")
        for part in [length + message] if len(message) <= _JOINED_BYTES else [length, message]:
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[os.write(self._out_fd, rest) :]
                except BlockingIOError:
                    self._wait_to_write()

    def receive(self) -> bytes | bytearray:
        """Waits for a message. Raises EOFError if the other end is closed."""
        if not _RAW:
            return self._inbox.recv_bytes()
        return self._read(int.from_bytes(self._read(_LENGTH_BYTES), "little"))

    def close(self) -> None:
        """Closes this end; may be called twice."""
        self._in_fd = self._out_fd = -1  # other files may reuse the numbers
        self._inbox.close()
        self._outbox.close()

    def _read(self, n_bytes: int) -> bytearray:
        data = bytearray(n_bytes)
        rest = memoryview(data)
        while rest:
            try:
                n_read = os.readv(self._in_fd, [rest])
            except BlockingIOError:
                self._wait_to_read()
                continue
            if not n_read:
                raise EOFError
            rest = rest[n_read:]
        return data

    def _wait_to_read(self) -> None:
        if not self._is_ready_while_worker_runs(self._poller):
            raise EOFError

    def _wait_to_write(self) -> None:
        poller = select.poll()
        poller.register(self._out_fd, select.POLLOUT)
        if not self._is_ready_while_worker_runs(poller):
            raise BrokenPipeError

    def _is_ready_while_worker_runs(self, poller: "select.poll") -> bool:
        assert self._worker_runs is not None
        while not poller.poll(_STALL_S * 1000):
            if not self._worker_runs():
                return bool(poller.poll(0))  # its last data may have arrived in between
        return True


def wait_for_links(links: Sequence[WorkerLink], timeout_s: float) -> bool:
    """Whether data arrives from one of these, or its other end is closed, within the time."""
    return bool(multiprocessing.connection.wait([link._inbox for link in links], timeout_s))


def _drop_trainer_ends() -> None:
    for link in list(_trainer_ends):
        link.close()


if hasattr(os, "register_at_fork"):
    # If a forked process kept them open, workers would not notice that the trainer has ended.
    os.register_at_fork(after_in_child=_drop_trainer_ends)
