"""The process of one run under the service: it waits for the go signal, claims the run folder, and trains.

Before the go signal it changes nothing. The service first records the process in its queue, then sends the signal; if
the service ends before that, the pipe closes and the process ends. So every run that trains is recorded, and a folder
whose state is "queued" is untouched.

On Linux the process is forked from the run host, which has imported everything that a run needs, so a run begins within
milliseconds. The host has one thread, uses no device, and ends with the service; runs continue without it. On other
systems, each run is a new interpreter.

python -m ml_pipeline.service.run_process          the host, a `Child` of the service
python -m ml_pipeline.service.run_process ORDER    a single run
"""

import gc
import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.child import take_streams
from ml_pipeline.jobs.exit_reason import last_words
from ml_pipeline.runs.folder import OUTPUT_FILE
from ml_pipeline.runs.folder_claim import record_end_for, record_starting
from ml_pipeline.runs.state import Status
from ml_pipeline.runs.stop import ON_REQUEST, take_stop_note
from ml_pipeline.runtime.files import only_regular
from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

GO = b"g"
PROG = "ml-pipeline train"
_TRAIN = "ml_pipeline.train_ppo"
"""Module of the training command. Named, not imported: packages below the commands must not import them."""
_BY_SIGNAL = 128  # plus the signal's number: exit code of a command that a signal stopped

# Not polars, which starts threads at import: a fork would copy their locks, but not the threads.
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
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """What to run. arguments: of `ml-pipeline train`. environment: variables in addition to those of the service."""

    folder: str
    folder_of_work: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


def await_go(descriptor: int) -> bool:
    """Wait for the go signal on this pipe, and close our end. Returns False if the pipe closes instead."""
    try:
        return os.read(descriptor, 1) == GO
    finally:
        os.close(descriptor)


def run(order: RunOrder) -> int:
    """Run an order, with output to the folder's output.log; return the exit code of the command."""
    folder = Path(order.folder)
    exit_at_once_on_signals(PROG)
    _redirect(folder / OUTPUT_FILE)
    try:
        record_starting(folder)
    except UserError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return 2
    code = 1
    try:
        os.environ.update(order.environment)
        os.chdir(order.folder_of_work)
        code = import_module(_TRAIN).main(list(order.arguments), prog=PROG)
    except FileNotFoundError as error:
        if error.filename != order.folder_of_work:
            raise
        sys.stderr.write(f"{PROG}: The folder it was submitted in is gone: {order.folder_of_work}.\n")
        code = 2
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        if code:  # no effect if the run had claimed its folder: then it has recorded its own end
            with suppress(UserError, OSError):
                status: Status = "stopped" if code > _BY_SIGNAL else "failed"
                words = last_words(folder / OUTPUT_FILE)
                reason = ON_REQUEST if status == "stopped" and take_stop_note(folder) else words
                record_end_for(folder, status, reason or f"It ended with exit code {code}.")
    return code


def _redirect(output: Path) -> None:
    """Redirect stdin from the null device, and stdout and stderr to the end of a file, or to the null device if the
    file cannot be opened."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        target = only_regular(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        target = nothing
    for descriptor, source in ((0, nothing), (1, target), (2, target)):
        os.dup2(source, descriptor)
    for opened in {nothing, target} - {0, 1, 2}:
        os.close(opened)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, encoding="utf-8", errors="replace")


class RunHost:
    """Forks processes that wait for the go signal, and reports their ends. It answers requests of the service:

    {"do": "start", "order": {...}} -> {"started": PID}     a process that waits for the go signal
    {"do": "go", "pid": PID}                                let it begin
    {"do": "drop", "pid": PID}                              end it before it begins
                                    -> {"ended": PID, "exit_code": N}   N < 0: killed by signal -N
    """

    def __init__(self) -> None:
        self._orders, self._answers = take_streams()
        self._gates: dict[int, int] = {}  # by pid: our end of the pipe for the go signal
        self._watched: dict[int, int | None] = {}  # by pid: a descriptor that becomes readable at its end, if any

    def serve(self) -> RunOrder | None:
        """Answer until the service ends, then return None. In a forked process, return that process's order."""
        unread = b""
        while True:
            self._tell_ended()
            handles: list[Any] = [descriptor for descriptor in self._watched.values() if descriptor is not None]
            waits = None if len(handles) == len(self._watched) else _POLL_S
            ready, _, _ = select.select([self._orders, *handles], [], [], waits)
            if self._orders not in ready:
                continue
            if not (came := os.read(self._orders.fileno(), _MOST_BYTES)):
                return None
            *lines, unread = (unread + came).split(b"\n")
            for request in (json.loads(line)["order"] for line in lines):
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
        """Fork. Returns None in this process and, after the go signal, the order in the new one."""
        inside, gate = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(inside)
            os.close(gate)
            self.tell(error=error.strerror)
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
        """Called in a forked process: start a session, and close everything that belongs to the parent."""
        os.setsid()
        handles = [descriptor for descriptor in self._watched.values() if descriptor is not None]
        for descriptor in (gate, *self._gates.values(), *handles):
            os.close(descriptor)
        self._orders.close()
        self._answers.close()
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
        with suppress(OSError):  # the service has ended; the next read will notice
            self._answers.write(json.dumps(values).encode() + b"\n")
            self._answers.flush()


def _handle_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)  # Linux 5.3
    except (AttributeError, OSError):
        return None


def _reseed() -> None:
    """Reseed NumPy's global generator, so that forked runs differ; Python reseeds `random` itself."""
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
    gc.freeze()  # runs share these pages: exclude them from collections, which would copy them


def _ready_compiler() -> None:
    """Compile one function: numba's first compilation takes 0.6 s longer, to fill its tables."""
    with suppress(ImportError):
        numba: Any = import_module("numba")
        numba.njit(lambda x: x + 1)(1)


def _host() -> int:
    host = RunHost()
    _preload()
    host.tell(ready=True)
    order = host.serve()
    return 0 if order is None else run(order)


def _main() -> int:
    """Run the order on the command line, with the pipe for the go signal as stdin; without an order, run the host."""
    text = sys.orig_argv[-1]
    if not text.startswith("{"):
        return _host()
    order = RunOrder(**json.loads(text))
    return run(order) if await_go(os.dup(0)) else 0


if __name__ == "__main__":
    sys.exit(_main())
