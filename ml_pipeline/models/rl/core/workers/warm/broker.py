"""Lends the workers of a pool: starts them by forking its process, hands them out, and sees how they end.

It is the parent of all of them, has a single thread, and outlives its owner for as long as workers are lent.
"""

import contextlib
import math
import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ml_pipeline.models.rl.core.workers.descendants import end_group_of
from ml_pipeline.models.rl.core.workers.warm import messages
from ml_pipeline.models.rl.core.workers.warm.lease_book import Lease, LeaseBook, LeaseRefused
from ml_pipeline.models.rl.core.workers.warm.lent_worker import Lessee, State, WarmWorker
from ml_pipeline.models.rl.core.workers.warm.same_code import code_stamp
from ml_pipeline.models.rl.core.workers.warm.worker import run_warm_worker

_RETURN_S = 10.0  # for a worker whose lessee has let go of it to be wiped
_END_S = 2.0  # for a worker that was told to end: a thread that an environment left would keep it for ever
_SEND_S = 1.0  # for a lessee to read what it asked for
_FAILED_STARTS = 3  # in a row, of workers that never became idle


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What `EnvPool` was given."""

    max_envs: int
    max_workers: int
    idle_s: float
    preload: tuple[str, ...]


class Broker:
    """Lends workers until its owner is gone and all have been returned."""

    def __init__(self, owner: socket.socket, listener: socket.socket, settings: PoolSettings) -> None:
        self._settings = settings
        self._book = LeaseBook(settings.max_envs, settings.max_workers)
        self._owner, self._listener = owner, listener
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, WarmWorker] = {}
        self._lessees: list[Lessee] = []
        self._by_lease: dict[int, Lessee] = {}
        self._is_open = True
        self._numbers = iter(range(1, 1 << 62))
        self._failed_starts = 0
        self._watch(owner, self._close)
        self._watch(listener, self._accept)

    def run(self) -> None:
        """Returns once nothing is left to do."""
        while self._is_open or self._workers:
            for key, _ in self._selector.select(self._wait_s()):
                if self._selector.get_map().get(key.fd) is key:  # an earlier one may have ended it
                    key.data()
            self._keep_time()
            self._lend()
            self._end_surplus()
        for lessee in list(self._lessees):
            self._forget(lessee)

    def _watch(self, file: Any, act: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _close(self) -> None:
        """The owner has closed the pool, or is gone: who waits is refused, idle workers end, others are awaited."""
        self._is_open = False
        for connection in (self._owner, self._listener):
            self._selector.unregister(connection)
            connection.close()
        for lessee in list(self._lessees):
            if lessee.lease is not None and lessee.lease in self._book.waiting:
                self._refuse(lessee, "The pool of warm workers is closed.")
        for worker in self._workers.values():
            worker.dismiss()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not messages.is_of_this_user(connection):
            connection.close()
            return
        connection.settimeout(_SEND_S)
        lessee = Lessee(connection)
        self._lessees.append(lessee)
        self._watch(connection, lambda: self._hear_lessee(lessee))

    def _hear_lessee(self, lessee: Lessee) -> None:
        try:
            message, _ = messages.receive(lessee.connection)
            if "tell" in message:
                messages.send(lessee.connection, self._state())
            elif lessee.lease is None:
                self._ask(lessee, message["lease"])
        except (EOFError, OSError, ValueError, LookupError, TypeError):
            self._forget(lessee)

    def _ask(self, lessee: Lessee, wish: dict[str, Any]) -> None:
        holder = f"process {messages.pid_of(lessee.connection)}"
        blocks = [(int(first), int(stop)) for first, stop in wish["blocks"]]
        lease = Lease(
            holder,
            wish["batch"],
            blocks,
            time.monotonic() + float(wish["wait_s"]),
            kind=wish["kind"],
            division=int(wish["division"]),
        )
        try:
            if wish["stamp"] != code_stamp():
                raise LeaseRefused(
                    "The pool of warm workers runs other code than this process (another interpreter, or packages that "
                    "were changed since); start the pool again to use it."
                )
            self._book.ask(lease)
        except LeaseRefused as error:
            self._refuse(lessee, str(error))
            return
        lessee.lease = lease
        self._by_lease[id(lease)] = lessee

    def _refuse(self, lessee: Lessee, sentence: str) -> None:
        with contextlib.suppress(OSError):
            messages.send(lessee.connection, {"refused": sentence})
        self._forget(lessee)

    def _forget(self, lessee: Lessee) -> None:
        """They have left. Workers that they had end, or come back within a time."""
        self._selector.unregister(lessee.connection)
        lessee.connection.close()
        self._lessees.remove(lessee)
        lessee.left_at = time.monotonic()
        if lessee.lease is not None:
            self._book.withdraw(lessee.lease)
            self._by_lease.pop(id(lessee.lease), None)

    def _lend(self) -> None:
        """Lends to those who wait, in order, for as long as there is room and workers are idle."""
        while (lease := self._book.first_that_fits()) is not None:
            lessee = self._by_lease[id(lease)]
            idle = [worker for worker in self._of(State.IDLE) if not worker.has_ended()]
            missing = len(lease.blocks) - len(idle)
            if missing > 0:
                if self._failed_starts >= _FAILED_STARTS:
                    self._failed_starts = 0
                    self._refuse(lessee, "The pool of warm workers cannot start any: they end while they start.")
                    continue
                room = self._settings.max_workers + self._book.n_taking_over(lease) - len(self._workers)
                for _ in range(min(missing - len(self._of(State.WARMING)), room)):
                    self._start(())
                return
            idle.sort(key=lambda worker: (worker.kind != lease.kind, -worker.since))
            chosen = idle[: len(lease.blocks)]
            self._book.grant(lease, [worker.number for worker in chosen])
            try:
                for worker in chosen:
                    self._hand_out(worker, lessee)
            except OSError:  # the lessee is gone, or does not read
                self._forget(lessee)
                for worker in chosen:
                    if worker.state is State.IDLE:
                        self._book.take_back(worker.number)

    def _end_surplus(self) -> None:
        """Ends idle workers beyond the limit: while environments moved to others, there were more."""
        n_most = self._settings.max_workers + self._book.n_taking_over(self._book.first_that_fits())
        for worker in self._of(State.IDLE)[: max(0, self._n_staying() - n_most)]:
            worker.state = State.ENDING
            worker.dismiss()

    def _of(self, state: State) -> list[WarmWorker]:
        return [worker for worker in self._workers.values() if worker.state is state]

    def _hand_out(self, worker: WarmWorker, lessee: Lessee) -> None:
        assert lessee.lease is not None
        for_lessee, for_worker = messages.pair()
        with for_lessee, for_worker:
            with contextlib.suppress(BrokenPipeError):  # it was killed just now, which is heard of next
                messages.send(worker.control, {"kind": lessee.lease.kind}, [for_worker.fileno()])
            worker.state, worker.lessee = State.LENT, lessee
            about = {"worker": worker.number, "pid": worker.process.pid}
            messages.send(lessee.connection, about, [for_lessee.fileno(), worker.pidfd])

    def _start(self, modules: Sequence[str]) -> None:
        """Forks a worker."""
        ours, theirs = messages.pair()
        number = next(self._numbers)
        context = multiprocessing.get_context("fork")
        process = context.Process(
            target=self._become_worker, args=(ours, theirs, modules), name=f"warm-worker-{number}"
        )
        process.start()
        theirs.close()
        assert process.pid is not None
        worker = WarmWorker(number, process, os.pidfd_open(process.pid), ours)
        self._workers[number] = worker
        self._watch(ours, lambda: self._hear_worker(worker))
        self._watch(worker.pidfd, lambda: self._bury(worker))

    def _become_worker(self, ours: socket.socket, theirs: socket.socket, modules: Sequence[str]) -> None:
        """In the fork: lets go of all that is the broker's."""
        connections = [lessee.connection for lessee in self._lessees]
        for connection in (ours, *connections, *(worker.control for worker in self._workers.values())):
            connection.close()
        if self._is_open:
            self._owner.close()
            self._listener.close()
        self._selector.close()
        for worker in self._workers.values():
            os.close(worker.pidfd)
        self._workers.clear()
        run_warm_worker(theirs, modules)

    def _hear_worker(self, worker: WarmWorker) -> None:
        try:
            message, _ = messages.receive(worker.control)
        except (EOFError, OSError):
            self._selector.unregister(worker.control)  # how it ends is heard of in a moment
            return
        self._book.take_back(worker.number)
        worker.lessee = None
        if "idle" in message:
            worker.state, worker.since, worker.kind = State.IDLE, time.monotonic(), message["idle"]
            self._failed_starts = 0
        else:
            worker.state, worker.since, worker.modules = State.ENDING, time.monotonic(), message["modules"]
            self._replace(worker)

    def _bury(self, worker: WarmWorker) -> None:
        """A worker has ended: tells its lessee how, and starts another one if it was of use."""
        worker.process.join()
        code, pid = worker.process.exitcode, worker.process.pid
        assert pid is not None
        end_group_of(pid)
        if self._selector.get_map().get(worker.control) is not None:
            worker.control.setblocking(False)
            self._hear_worker(worker)  # its last words, if it had any
        was_of_use = worker.state is State.LENT
        self._failed_starts += worker.state is State.WARMING
        del self._workers[worker.number]
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        if self._selector.get_map().get(worker.control) is not None:
            self._selector.unregister(worker.control)
        worker.control.close()
        worker.process.close()
        self._book.take_back(worker.number)
        if worker.lessee in self._lessees:
            with contextlib.suppress(OSError):
                messages.send(worker.lessee.connection, {"ended": worker.number, "exitcode": code})
        if was_of_use:
            self._replace(worker)

    def _replace(self, worker: WarmWorker) -> None:
        """Starts a successor of a worker that cannot be lent again."""
        if self._is_open and self._n_staying() < self._settings.max_workers:
            self._start(worker.modules)

    def _n_staying(self) -> int:
        return len(self._workers) - len(self._of(State.ENDING))

    def _keep_time(self) -> None:
        """Refuses who has waited for too long, ends who was idle or is not wiped for too long."""
        now = time.monotonic()
        for lease in self._book.overdue(now):
            self._refuse(self._by_lease[id(lease)], self._book.refusal(lease))
        for worker in self._workers.values():
            if worker.state is State.IDLE and now - worker.since >= self._settings.idle_s:
                worker.state, worker.since = State.ENDING, now
                worker.dismiss()
            elif (worker.state is State.ENDING and now - worker.since >= _END_S) or (
                worker.state is State.LENT and worker.left_at + _RETURN_S <= now
            ):
                worker.process.kill()

    def _wait_s(self) -> float | None:
        """Until when nothing happens by itself."""
        moments = [lease.deadline for lease in self._book.waiting]
        moments += [worker.since + self._settings.idle_s for worker in self._of(State.IDLE)]
        moments += [worker.since + _END_S for worker in self._of(State.ENDING)]
        moments += [worker.left_at + _RETURN_S for worker in self._of(State.LENT)]
        moment = min(moments, default=math.inf)
        return None if math.isinf(moment) else max(0.0, moment - time.monotonic())

    def _state(self) -> dict[str, Any]:
        return {
            "n_envs": self._book.n_envs,
            "n_workers": len(self._workers),
            "n_idle": len(self._of(State.IDLE)),
            "n_waiting": len(self._book.waiting),
            "pids": [worker.process.pid for worker in self._workers.values()],
            "held": self._book.holders(),
        }
