"""Asks a pool of warm workers for some of them."""

import contextlib
import contextvars
import itertools
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ml_pipeline.models.rl.core.workers.warm import messages
from ml_pipeline.models.rl.core.workers.warm.lease_book import LeaseRefused
from ml_pipeline.models.rl.core.workers.warm.leased_process import LeasedProcess
from ml_pipeline.models.rl.core.workers.warm.same_code import code_stamp
from ml_pipeline.runtime.env_pool_address import env_pool_address

DEFAULT_WAIT_S = 5.0  # for workers that others are about to return
_GRACE_S = 5.0  # beyond what is waited for: a pool that is stopped answers nobody
_TRIALS = 3  # where idle workers are killed while they are lent
_EXIT_S = 1.0  # until the pool has asked how a worker ended


class Lender:
    """A pool, as the environments of one batch see it: each environment counts once, also in two workers for a moment.

    address: of the pool. wait_s: how long to wait for room. is_required: whether to raise where the pool does not lend,
    in place of starting workers as usual. refusals: why it did not lend, a sentence each, until somebody takes them.
    """

    def __init__(self, address: str, *, wait_s: float = DEFAULT_WAIT_S, is_required: bool = False) -> None:
        self.address, self.wait_s, self.is_required = address, wait_s, is_required
        self.refusals: list[str] = []
        self._batch = secrets.token_hex(8)
        self._divisions = itertools.count()

    def new_division(self) -> int:
        """A number for workers that divide the environments among them, and may take them over from others."""
        return next(self._divisions)

    def lease(self, blocks: Sequence[range], division: int) -> list[LeasedProcess]:
        """A warm process for each block of environments. Raises LeaseRefused."""
        for _ in range(_TRIALS):
            leased = self._lease(blocks, division)
            if all(process.is_here(_GRACE_S) for process in leased):
                return leased
            for process in leased:
                process.close()
        raise LeaseRefused(f"The workers of the pool {self.address} end while they are lent.")

    def _lease(self, blocks: Sequence[range], division: int) -> list[LeasedProcess]:
        """What the pool lends, which may have been killed in this moment."""
        try:
            connection = messages.connect(self.address, timeout_s=self.wait_s + _GRACE_S)
        except OSError as error:
            why = error.strerror or error
            raise LeaseRefused(f"The pool of warm workers {self.address} is gone ({why}).") from error
        leased: list[LeasedProcess] = []
        try:
            messages.send(connection, {"lease": self._wish(blocks, division)})
            exits = _Exits(connection)
            while len(leased) < len(blocks):
                answer, files = messages.receive(connection)
                if "refused" in answer:
                    raise LeaseRefused(answer["refused"])
                if "ended" in answer:
                    exits.note(answer)
                    continue
                lifeline = socket.socket(fileno=files[0])
                leased.append(LeasedProcess(answer["worker"], answer["pid"], files[1], lifeline, exits))
                exits.expect(answer["worker"])
        except BaseException as error:
            for process in leased:
                process.close()
            connection.close()
            if isinstance(error, (OSError, EOFError)):
                raise LeaseRefused(f"The pool of warm workers {self.address} does not answer.") from error
            raise
        return leased

    def _wish(self, blocks: Sequence[range], division: int) -> dict[str, Any]:
        return {
            "blocks": [(block.start, block.stop) for block in blocks],
            "wait_s": self.wait_s,
            "batch": self._batch,
            "division": division,
            "stamp": code_stamp(),
            "kind": os.getcwd(),
        }


_lender: contextvars.ContextVar[Lender | None] = contextvars.ContextVar("lender", default=None)


def current_lender() -> Lender | None:
    """Who lends workers to a batch that is made now: see `lending`, else the pool that the environment names."""
    if (chosen := _lender.get()) is not None:
        return chosen
    address = env_pool_address()
    return None if address is None or messages.why_unavailable() else Lender(address)


@contextlib.contextmanager
def lending(lender: Lender | None) -> Iterator[None]:
    """Has batches that are made within, by this thread, lease from `lender`, and count as one; None changes nothing."""
    token = _lender.set(lender)
    try:
        yield
    finally:
        _lender.reset(token)


class _Exits:
    """How the processes of a lease ended, as the pool tells it, until all of them were given back."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._codes: dict[int, int] = {}
        self._expected: set[int] = set()

    def expect(self, worker: int) -> None:
        """Counts a process of the lease."""
        self._expected.add(worker)

    def forget(self, worker: int) -> None:
        """Counts a process that was given back."""
        self._expected.discard(worker)
        if not self._expected:
            self._connection.close()

    def note(self, message: dict[str, int]) -> None:
        """Takes what the pool tells of a process that has ended."""
        self._codes[message["ended"]] = message["exitcode"]

    def of(self, worker: int) -> int | None:
        """The exit code, as multiprocessing has it; None if the pool does not tell in time."""
        deadline = time.monotonic() + _EXIT_S
        poller = select.poll()
        if self._connection.fileno() >= 0:
            poller.register(self._connection, select.POLLIN)
        with contextlib.suppress(EOFError, OSError):
            while worker not in self._codes and (left_s := deadline - time.monotonic()) > 0:
                if not poller.poll(left_s * 1000):
                    break
                self.note(messages.receive(self._connection)[0])
        return self._codes.get(worker)
