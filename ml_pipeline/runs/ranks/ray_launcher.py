"""Starts ranks on the machines of a Ray cluster; if one is lost, restarts as many as there is room for.

Ray places the ranks and reports when one is gone; it neither restarts an actor nor retries a call, since a retried
actor would begin without the others. A rank is the same process that `LocalLauncher` starts, with the same variables:
`RemoteRank` starts it on its machine, and forwards its output and exit code. `RemoteRank` does not depend on Ray, and
calls may come from several threads.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import IO, Any, Literal, NamedTuple

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.runs.ranks.launcher import Launcher, free_port
from ml_pipeline.runtime.interrupts import Interrupted

Stream = Literal["stdout", "stderr"]

_CHUNK = 1 << 16  # bytes read at once
_MOST_CHUNKS = 64  # not yet fetched; a rank that writes more waits
# Linux kills the rank with the process that started it, however that ends. The request runs before the program is
# loaded, not in a `preexec_fn`, which is unsafe with the threads of a cluster's worker.
_END_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\n"  # PR_SET_PDEATHSIG
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)
_END_GRACE_S = 5.0  # after a rank's end, for output that its own children still hold open


class News(NamedTuple):
    """A rank's output since the last call, and its exit code."""

    output: list[tuple[Stream, bytes]]
    exit_code: int | None
    """None while it runs or has more output; minus the signal if a signal ended it."""


class RemoteRank:
    """One rank's process, on the machine of this object. On Linux it is killed with this object's process."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[tuple[Stream, bytes]] = queue.Queue(_MOST_CHUNKS)
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], *, folder: str) -> None:
        """Start `python ARGUMENTS` with these environment variables added to this process's own.

        folder: working directory if it exists on this machine; otherwise that of this process.
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
        """Output since the last call; waits up to `timeout_s` for something to report."""
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
        """Wake the reader of the output after the process has ended."""
        assert self._process is not None
        self._process.wait()
        self._chunks.put(("stdout", b""))


@contextlib.contextmanager
def _no_signal_blocked() -> Iterator[None]:
    """Within the block this thread blocks no signal, and neither do processes that it starts: threads of a cluster's
    worker block Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    usual = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


_USAGE_STATISTICS = "RAY_USAGE_STATS_ENABLED"
_NEWS_S = 1.0  # how long a call waits on the rank's machine for news
_ANSWER_S = 60.0  # for a machine to start an actor; without an answer by then it counts as lost
_ROOM_S = 30.0  # for the cluster to make room for all ranks, by new machines or by released resources
_ROOM_AGAIN_S = 10.0  # after a loss: to free the lost ranks' resources and notice the lost machine
_KILL_S = 5.0  # for an actor to kill its rank, before the actor is killed
_PAUSE_S = 1.0  # between two checks of whether the cluster has noticed a lost machine
_SPREAD = "SPREAD"  # over as many machines as possible, so that each rank has its own cores

Write = Callable[[Stream, bytes], None]


@contextlib.contextmanager
def ray_cluster() -> Iterator[ModuleType]:
    """Ray, connected to the running cluster at RAY_ADDRESS, or to the one of this machine, until the block ends.

    Ray's usage statistics are off unless RAY_USAGE_STATS_ENABLED is set; the cluster's head has its own setting from
    its start. Raises UserError if Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault(_USAGE_STATISTICS, "0")
    try:
        import ray
    except ImportError:
        raise UserError(f'Training on a Ray cluster needs the extra "ray": {install_extra("ray")}') from None
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"No Ray cluster answers ({in_one_line(error)}); start one with `ray start --head`, or name one in "
            "RAY_ADDRESS. On one machine, --n-processes alone needs no cluster."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


class RayLauncher(Launcher):
    """Ranks on the machines of a Ray cluster, each with one reserved CPU.

    Use it within `ray_cluster()`. Rank 0 runs on this machine if the cluster has room here, so that the run folder
    is here too.
    """

    _ranks: "list[_RayRank]"

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: int,
        max_restarts: int,
        say: Callable[[str], None],
        write: Write,
        ray: ModuleType,
        with_gpu: bool = False,
    ) -> None:
        """command: of every rank, after the interpreter. write: receives the ranks' output. ray: connected to its
        cluster. with_gpu: give each rank its own GPU."""
        super().__init__(command, size=size, max_restarts=max_restarts, say=say)
        self._wanted = size
        self._write = write
        self._ray = ray
        self._bundle = {"CPU": 1.0, **({"GPU": 1.0} if with_gpu else {})}
        self._group: Any = None

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait()
        self._ranks = []
        self._release()

    def _start_ranks(self, restart: int) -> None:
        seats = self._seats(_ROOM_AGAIN_S if restart else _ROOM_S)
        self._size = len(seats)
        if self._size < self._wanted:
            self._say(f"The Ray cluster has room for {counted(self._size, 'rank')} of {self._wanted}.")
        if seats[0].node != self._ray.get_runtime_context().get_node_id():
            self._say(f"Rank 0 runs on {seats[0].address} and writes the run folder there.")
        try:
            port = self._ray.get(seats[0].actor.free_port.remote())
        except self._ray.exceptions.RayError:
            port = 0  # its machine is already gone, as the start of ranks will show
        nodes = [seat.node for seat in seats]
        for rank, seat in enumerate(seats):
            variables = self._variables(
                restart,
                rank,
                LOCAL_RANK=nodes[:rank].count(seat.node),
                LOCAL_WORLD_SIZE=nodes.count(seat.node),
                GROUP_RANK=list(dict.fromkeys(nodes)).index(seat.node),
                MASTER_ADDR=seats[0].address,
                MASTER_PORT=port,
            )
            self._ranks.append(_RayRank(self._ray, seat.actor, self._write))
            self._ranks[-1].start(self._command, variables)

    def _seats(self, patience_s: float) -> "list[_Seat]":
        """Running actors for as many ranks as there is room for; this machine's first, then by machine.

        patience_s: how long to wait for room for all ranks before accepting fewer.

        Raises UserError if there is room for none, and Interrupted if a signal arrives meanwhile.
        """
        deadline = time.monotonic() + patience_s
        while self._signalled is None:
            number = self._wanted if time.monotonic() < deadline else self._room()
            if number and self._reserve(number, max(_PAUSE_S, deadline - time.monotonic())):
                seats = self._occupy(number)
                if seats is not None:
                    return seats
            self._release()
            if time.monotonic() > deadline + _ANSWER_S:
                raise UserError(
                    f"The Ray cluster has no room for a rank, which needs {_shown(self._bundle)}; it has free "
                    f"{_shown(self._ray.available_resources())}. Add machines, or end other jobs there."
                )
            time.sleep(_PAUSE_S)
        raise Interrupted(self._signalled)

    def _room(self) -> int:
        """The number of ranks that fit in the free resources."""
        free = self._ray.available_resources()
        return min(self._wanted, *(int(free.get(name, 0.0) / amount) for name, amount in self._bundle.items()))

    def _reserve(self, number: int, timeout_s: float) -> bool:
        from ray.util.placement_group import placement_group

        self._group = placement_group([self._bundle] * number, strategy=_SPREAD)
        ready: bool = self._group.wait(timeout_s)
        return ready

    def _occupy(self, number: int) -> "list[_Seat] | None":
        """An actor in each bundle; None if one of them does not start."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor_class = self._ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=4)(_ActorRank)
        actors = [
            actor_class.options(
                num_cpus=self._bundle["CPU"],
                num_gpus=self._bundle.get("GPU", 0.0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
            ).remote()
            for index in range(number)
        ]
        try:
            places = self._ray.get([actor.place.remote() for actor in actors], timeout=_ANSWER_S)
        except self._ray.exceptions.RayError:
            return None
        here = self._ray.get_runtime_context().get_node_id()
        seats = [_Seat(actor, *place) for actor, place in zip(actors, places, strict=True)]
        return sorted(seats, key=lambda seat: (seat.node != here, seat.node))

    def _release(self) -> None:
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


class _Seat(NamedTuple):
    """An actor without a rank yet, and where it runs."""

    actor: Any
    node: str
    """Ray's id of the machine."""
    address: str


class _ActorRank(RemoteRank):
    """`RemoteRank` as a Ray actor."""

    def free_port(self) -> int:
        return free_port()

    def place(self) -> tuple[str, str]:
        """Ray's id of this machine, and its address for the others."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


class _RayRank:
    """A rank with the interface of `subprocess.Popen`, and a thread that forwards its output."""

    def __init__(self, ray: ModuleType, actor: Any, write: Write) -> None:
        self._ray = ray
        self._actor = actor
        self._write = write
        self._code: int | None = None
        self._killed = False
        self._follower: threading.Thread | None = None
        self._unfinished: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}

    def start(self, arguments: Sequence[str], variables: dict[str, str]) -> None:
        """Start the process. If its machine is gone, the rank counts as killed."""
        started = self._actor.start.remote(arguments, variables, folder=os.getcwd())
        self._follower = threading.Thread(target=self._follow, args=(started,), daemon=True)
        self._follower.start()

    def poll(self) -> int | None:
        return self._code

    def send_signal(self, number: int) -> None:
        self._actor.send_signal.remote(number)

    def kill(self) -> None:
        """Kill the rank, then its actor, which ends the rank if it is still running."""
        if not self._killed:
            self._killed = True
            if self._code is None:
                self._ray.wait([self._actor.send_signal.remote(signal.SIGKILL)], timeout=_KILL_S)
            self._ray.kill(self._actor, no_restart=True)

    def wait(self) -> None:
        """Wait for the rank's end and the rest of its output."""
        if self._follower is not None:
            self._follower.join()

    def _follow(self, started: Any) -> None:
        try:
            self._ray.get(started)
            code = None
            while code is None:
                output, code = self._ray.get(self._actor.news.remote(_NEWS_S))
                for stream, chunk in output:
                    self._write_lines(stream, chunk)
        except self._ray.exceptions.RayError:
            code = -signal.SIGKILL
        for stream, rest in self._unfinished.items():
            if rest:
                self._write(stream, rest + b"\n")
        self._code = code

    def _write_lines(self, stream: Stream, chunk: bytes) -> None:
        """Forward whole lines only, since lines of other ranks may come between."""
        lines, newline, rest = (self._unfinished[stream] + chunk).rpartition(b"\n")
        self._unfinished[stream] = rest
        if newline:
            self._write(stream, lines + newline)


def _shown(resources: Mapping[str, float]) -> str:
    """
    >>> _shown({"CPU": 1.0, "memory": 2e9})
    '1 CPU'
    """
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items() if name in {"CPU", "GPU"}) or "nothing"
