"""Starts ranks on the machines of a Ray cluster, and all again with as many as there is room for if one is lost.

Ray places the ranks and says when one is gone; it neither restarts an actor nor retries a call, since a retried actor
would begin without the others. A rank itself is the process that `LocalLauncher` starts, with the same variables:
`RemoteRank` starts it on its machine, and passes on its output and its end; it knows nothing of Ray, and calls may come
from several threads.
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


_USAGE_STATISTICS = "RAY_USAGE_STATS_ENABLED"
_NEWS_S = 1.0  # how long a call waits on the rank's machine for something to be told
_ANSWER_S = 60.0  # for a machine to start an actor; one that does not answer by then is taken for lost
_ROOM_S = 30.0  # for the cluster to make room for all ranks, by machines that it adds or by what others release
_ROOM_AGAIN_S = 10.0  # the same after a loss: for it to free what the lost ranks had, and to miss the lost machine
_KILL_S = 5.0  # for a rank to be killed by its actor, before the actor is
_PAUSE_S = 1.0  # between two looks at a cluster that is about to notice that a machine is gone
_SPREAD = "SPREAD"  # over as many machines as possible, so that each rank has cores of its own

Write = Callable[[Stream, bytes], None]


@contextlib.contextmanager
def ray_cluster() -> Iterator[ModuleType]:
    """Ray, connected to the running cluster that RAY_ADDRESS names, or to the one of this machine, until the end.

    Ray's usage statistics are off unless RAY_USAGE_STATS_ENABLED says otherwise; what a cluster's head reports is
    settled where that is started. Raises UserError where Ray is not installed, or no cluster answers.
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
    """Ranks on the machines of a Ray cluster, each with a processor that the cluster reserves for it.

    Use it within `ray_cluster()`. Rank 0 runs on this machine where the cluster has room here, so that the run folder
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
        """command: of every rank, after the interpreter. write: takes what ranks print. ray: connected to its cluster.
        with_gpu: place each rank with a GPU of its own."""
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
            port = 0  # its machine is gone already, which the ranks' start will show
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
        """Actors that run, for as many ranks as there is room for; those on this machine first, then by machine.

        patience_s: how long to wait for room for all ranks, before fewer will do.

        Raises UserError where there is room for none, and Interrupted where a signal came meanwhile.
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
        """For how many ranks the free resources are enough."""
        free = self._ray.available_resources()
        return min(self._wanted, *(int(free.get(name, 0.0) / amount) for name, amount in self._bundle.items()))

    def _reserve(self, number: int, timeout_s: float) -> bool:
        from ray.util.placement_group import placement_group

        self._group = placement_group([self._bundle] * number, strategy=_SPREAD)
        ready: bool = self._group.wait(timeout_s)
        return ready

    def _occupy(self, number: int) -> "list[_Seat] | None":
        """An actor in each bundle; None where one of them does not start."""
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
    """An actor that waits for its rank, and where it runs."""

    actor: Any
    node: str
    """Ray's id of the machine."""
    address: str


class _ActorRank(RemoteRank):
    """`RemoteRank` as a Ray actor."""

    def free_port(self) -> int:
        return free_port()

    def place(self) -> tuple[str, str]:
        """Ray's id of this machine, and the address under which the others reach it."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


class _RayRank:
    """A rank as `subprocess.Popen` shows a process, and a thread that passes on what it prints."""

    def __init__(self, ray: ModuleType, actor: Any, write: Write) -> None:
        self._ray = ray
        self._actor = actor
        self._write = write
        self._code: int | None = None
        self._killed = False
        self._follower: threading.Thread | None = None
        self._unfinished: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}

    def start(self, arguments: Sequence[str], variables: dict[str, str]) -> None:
        """Start the process. A machine that is gone by now counts as a rank that was killed."""
        started = self._actor.start.remote(arguments, variables, folder=os.getcwd())
        self._follower = threading.Thread(target=self._follow, args=(started,), daemon=True)
        self._follower.start()

    def poll(self) -> int | None:
        return self._code

    def send_signal(self, number: int) -> None:
        self._actor.send_signal.remote(number)

    def kill(self) -> None:
        """End the rank, then its actor, with which the rank ends where it did not before."""
        if not self._killed:
            self._killed = True
            if self._code is None:
                self._ray.wait([self._actor.send_signal.remote(signal.SIGKILL)], timeout=_KILL_S)
            self._ray.kill(self._actor, no_restart=True)

    def wait(self) -> None:
        """For the rank's end, and for what it printed."""
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
        """Pass on whole lines alone, between which those of other ranks may come."""
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
