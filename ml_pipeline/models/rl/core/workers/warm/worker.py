"""What runs in a warm worker: lease after lease, with a process that each finds as if it were new."""

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ml_pipeline.models.rl.core.workers.descendants import end_with_group
from ml_pipeline.models.rl.core.workers.main import begin_worker, serve
from ml_pipeline.models.rl.core.workers.pipes import WorkerLink
from ml_pipeline.models.rl.core.workers.shared_memory import SharedMemory
from ml_pipeline.models.rl.core.workers.warm import messages
from ml_pipeline.models.rl.core.workers.warm.surroundings import enter
from ml_pipeline.models.rl.core.workers.warm.wipe import CleanState


def run_warm_worker(control: socket.socket, modules: Sequence[str]) -> None:
    """The main function of a warm worker: returns when the pool is gone, or when it cannot be wiped.

    control: the connection to the pool. modules: of installed packages, which its predecessor had imported.
    """
    begin_worker()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir("/")
    worker = _WarmWorker(control)
    for name in modules:
        with contextlib.suppress(Exception):  # a lease that needs it says what is wrong
            importlib.import_module(name)
    clean = CleanState()
    gc.freeze()  # what is there now is never garbage; each wipe is faster by that
    news: dict[str, Any] = {"idle": ""}
    with contextlib.suppress(EOFError, BrokenPipeError):  # the pool is gone, or lets this worker go
        while "idle" in news:
            messages.send(control, news)
            message, files = messages.receive(control)
            with messages.close_in_forks(socket.socket(fileno=files[0])) as lifeline:
                worker.lease(lifeline)
                unfit = clean.restore(but_for=lifeline.fileno())
                news = {"unfit": "; ".join(unfit), "modules": clean.new_installed_modules()}
                if not unfit:
                    _wait_until_given_back(lifeline)
                    news = {"idle": message["kind"]}
        messages.send(control, news)


class _WarmWorker:
    """Serves lessees, one after another. Whatever goes wrong in that ends the process."""

    def __init__(self, control: socket.socket) -> None:
        messages.close_in_forks(control)
        self._link: WorkerLink | None = None
        self._forked: list[int] = []
        os.register_at_fork(after_in_child=self._begin_fork)

    def lease(self, lifeline: socket.socket) -> None:
        """Takes files and surroundings of a lessee, steps its environments until it closes them, and tells it so.

        Ends this process where the lessee has ended.
        """
        try:
            messages.send(lifeline, {"here": True})
            terms, files = messages.receive(lifeline)
        except (EOFError, BrokenPipeError):  # it did not want the worker after all
            return
        inbox, outbox, stacks, memory, lessee, *streams = files
        self._link = link = WorkerLink(Connection(inbox, writable=False), Connection(outbox, readable=False))
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        try:
            with _writing_to(streams), _ending_with(lessee):
                self._serve(link, SharedMemory(memory, terms["n_bytes"]))
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            os.close(stacks)
            link.close()
            self._link = None
        with contextlib.suppress(OSError):
            messages.send(lifeline, {"returned": True})

    def _serve(self, link: WorkerLink, memory: SharedMemory) -> None:
        try:
            about = link.receive()
        except EOFError:  # the lessee left before it sent anything
            return
        try:
            enter(pickle.loads(about))
            serve(link, memory, self._forked)
        except Exception:
            traceback.print_exc()  # to the lessee's stderr
            raise SystemExit(1) from None

    def _begin_fork(self) -> None:
        self._forked.append(os.getpid())
        if self._link is not None:
            self._link.close()


@contextlib.contextmanager
def _writing_to(streams: Sequence[int]) -> Iterator[None]:
    """Has stdout and stderr lead where the lessee's do."""
    usual = [os.dup(number) for number in (1, 2)]
    try:
        _lead(streams)
        yield
    finally:
        _lead(usual)


def _lead(streams: Sequence[int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # an environment may have put anything in their place
            stream.flush()
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)


@contextlib.contextmanager
def _ending_with(lessee: int) -> Iterator[None]:
    """Ends this process and its group as soon as the lessee has ended. lessee: its pidfd, closed in the end."""
    stopped, stop = os.pipe()
    watch = threading.Thread(target=_end_with, args=(lessee, stopped), name="end-with-lessee", daemon=True)
    watch.start()
    try:
        yield
    finally:
        os.write(stop, b"x")
        watch.join()
        for descriptor in (lessee, stopped, stop):
            os.close(descriptor)


def _end_with(lessee: int, stopped: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread is whose stack is asked for
    poller = select.poll()
    poller.register(lessee, select.POLLIN)
    poller.register(stopped, select.POLLIN)
    if any(descriptor == lessee for descriptor, _ in poller.poll()):
        end_with_group()


def _wait_until_given_back(lifeline: socket.socket) -> None:
    """Until then the lessee may send signals, which must reach nobody else's worker."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            messages.receive(lifeline)
