"""A process from which runs are forked: it has imported all that a run needs, so that one begins within milliseconds.

It has one thread, touches no device, and ends when the service does; runs go on without it. It reads requests from
the service and tells it which processes it started and how they ended, each as a JSON object:

{"do": "start", "order": {...}} -> {"started": PID}     a process that waits for its go
{"do": "go", "pid": PID}                                begin
{"do": "drop", "pid": PID}                              end without having begun
                                -> {"ended": PID, "exit_code": N}   N < 0: by signal -N

python -m ml_pipeline.service.run.host DESCRIPTOR
"""

import gc
import json
import os
import select
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from ml_pipeline.service.run.process import GO, RunOrder, await_go, run

# Not polars, which starts threads as it is imported: a fork would have their locks, and not them.
_PRELOADED = (
    "ml_pipeline.train_ppo",
    "ml_pipeline.runs.run",
    "ml_pipeline.runs.gym_task",
    "ml_pipeline.reporting.learning_curve_figure",
    "ml_pipeline.trading.evaluation.report",
    "gymnasium.wrappers",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
)
_PRELOADED_WHERE_THERE = (
    "scipy.linalg",
    "gymnasium.envs.classic_control.cartpole",
    "ml_pipeline.models.rl.compiled.kernel",
    "ml_pipeline.trading.accounts.compiled_kernel",
)
_POLL_S = 0.05


class RunHost:
    """Forks processes that wait for their go, and tells how they end."""

    def __init__(self, service: Connection) -> None:
        self._service = service
        self._gates: dict[int, int] = {}  # by pid: our end of the pipe through which its go comes
        self._watched: dict[int, int | None] = {}  # by pid: what becomes readable when it ends, where there is such

    def serve(self) -> RunOrder | None:
        """Answer until the service ends: returns None then. In a forked process it returns that one's order."""
        while True:
            self._tell_ended()
            handles: list[Any] = [descriptor for descriptor in self._watched.values() if descriptor is not None]
            waits = None if len(handles) == len(self._watched) else _POLL_S
            ready, _, _ = select.select([self._service, *handles], [], [], waits)
            if self._service not in ready:
                continue
            try:
                request = json.loads(self._service.recv_bytes())
            except (EOFError, OSError):
                return None
            if request["do"] == "start":
                order = self._start(RunOrder(**request["order"]))
                if order is not None:
                    return order
            elif (gate := self._gates.pop(request["pid"], None)) is not None:
                with suppress(OSError):  # it has ended
                    if request["do"] == "go":
                        os.write(gate, GO)
                os.close(gate)

    def _start(self, order: RunOrder) -> RunOrder | None:
        """Fork; None in this process, and the order in the one that is to follow it, once it is told to go."""
        inside, gate = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(inside)
            os.close(gate)
            self.tell(started=None, error=error.strerror)
            return None
        if pid == 0:
            self._leave(gate)
            if not await_go(inside):
                os._exit(0)
            return order
        os.close(inside)
        self._gates[pid] = gate
        self._watched[pid] = _handle_of(pid)
        self.tell(started=pid)
        return None

    def _leave(self, gate: int) -> None:
        """Called in a forked process: lead a session, and let go of all that is its parent's."""
        os.setsid()
        handles = [descriptor for descriptor in self._watched.values() if descriptor is not None]
        for descriptor in (gate, *self._gates.values(), *handles, self._service.fileno()):
            os.close(descriptor)
        self._service._handle = None  # type: ignore[attr-defined]  # closed above, and the number is another's soon
        _reseed()

    def _tell_ended(self) -> None:
        for pid, handle in [*self._watched.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            if handle is not None:
                os.close(handle)
            del self._watched[pid]
            if (gate := self._gates.pop(pid, None)) is not None:
                os.close(gate)
            self.tell(ended=pid, exit_code=os.waitstatus_to_exitcode(status))

    def tell(self, **values: Any) -> None:
        """Send the service a message."""
        with suppress(OSError):  # the service has ended, which the next read notices
            self._service.send_bytes(json.dumps(values).encode())


def _handle_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)  # Linux 5.3
    except (AttributeError, OSError):
        return None


def _reseed() -> None:
    """Every run begins with generators of its own where something draws from global ones; Python reseeds `random`."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _preload() -> None:
    for name in _PRELOADED:
        import_module(name)
    for name in _PRELOADED_WHERE_THERE:
        with suppress(ImportError):
            import_module(name)
    _ready_compiler()
    gc.collect()
    gc.freeze()  # what is there is shared by all runs: no collection of theirs looks at it, and copies its pages


def _ready_compiler() -> None:
    """numba fills its tables when it first compiles, which takes 0.6 s."""
    with suppress(ImportError):
        numba: Any = import_module("numba")
        numba.njit(lambda x: x + 1)(1)


def _main() -> int:
    service = Connection(int(sys.orig_argv[-1]))
    _preload()
    host = RunHost(service)
    host.tell(ready=True)
    order = host.serve()
    return 0 if order is None else run(order)


if __name__ == "__main__":
    sys.exit(_main())
