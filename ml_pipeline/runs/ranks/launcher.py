"""Starts the ranks of one run, watches them, passes signals on, and starts all again if one is lost.

`Launcher` is what all launchers have in common; `LocalLauncher` starts ranks on this machine. A rank finds its place in
torchrun's environment variables.

Why not torch's elastic launch, which torchrun uses: it starts all ranks again after any exit code but 0, also if
settings were refused or a rank failed by itself; after a signal it kills ranks that take longer than a fixed time to
save, and their exit codes are lost; it gives ranks no sign of its own end, so that they outlive an agent that is
killed; and it would load torch, 2 s and 290 MB, into the process that only watches. Ranks that torchrun starts follow
its rules.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from ml_pipeline.config.wording import counted
from ml_pipeline.runs.ranks.rank_info import LAUNCHER_PID, OWN_LAUNCH
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.interrupts import held_back

RANK_LOST = 75
"""The exit code of a rank that could not go on without another one: EX_TEMPFAIL of BSD's sysexits.h."""
REFUSED = 2
FAILED = 1
BY_SIGNAL = 128
"""And the signal's number: the code of a rank that saved and ended as it was asked to."""
STOPPED = frozenset(BY_SIGNAL + number for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", 1)))


def is_bad(code: int | None) -> bool:
    """Whether a rank that ended with this code leaves the others in the lurch; None: it has not ended."""
    return code is not None and code != 0 and code not in STOPPED


def verdict(codes: Sequence[int]) -> int | None:
    """The exit code of the command; None where ranks were lost, so that starting all again can help.

    2 where a rank refused its settings, and 1 where one failed by itself, which starting again would not change. 0
    where the first rank has ended the run, even if another one was killed after it had done its part.

    >>> verdict([0, 0]), verdict([RANK_LOST, 2]), verdict([143, 143]), verdict([RANK_LOST, -9]), verdict([0, -9])
    (0, 2, 143, None, 0)
    """
    for decisive in (REFUSED, FAILED):
        if decisive in codes:
            return decisive
    if not codes or codes[0] == 0:
        return 0
    return next((code for code in codes if code in STOPPED), None)


def lost_ranks(codes: Sequence[int]) -> str:
    """Which ranks were lost and how, as the begin of a sentence.

    >>> lost_ranks([RANK_LOST, -9])
    'Rank 1 was killed by SIGKILL'
    """
    causes = [_cause(rank, code) for rank, code in enumerate(codes) if code not in {0, RANK_LOST}]
    return f"R{', '.join(causes)[1:]}" if causes else "The ranks lost contact"


def _cause(rank: int, code: int) -> str:
    if code > 0:
        return f"rank {rank} ended with exit code {code}"
    try:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"rank {rank} was killed by signal {-code}"


_POLL_S = 0.02
_GRACE_S = 5.0


class RankProcess(Protocol):
    """A started rank, as `subprocess.Popen` shows a process."""

    def poll(self) -> int | None:
        """Its exit code, minus the signal that killed it; None while it runs. At once, wherever it runs."""

    def send_signal(self, number: int, /) -> None:
        """Raises OSError where it has ended."""

    def kill(self) -> None: ...


class Launcher(ABC):
    """`run` once; `close` ends what is left. A subclass says where ranks run."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: int,
        max_restarts: int,
        say: Callable[[str], None],
        grace_s: float = _GRACE_S,
    ) -> None:
        """command: of every rank. say: is told of a restart, and of its reason. grace_s: how long the others have to
        end by themselves where a rank has ended badly."""
        self._command = list(command)
        self._size = size
        self._max_restarts = max_restarts
        self._say = say
        self._grace_s = grace_s
        self._launch = f"{OWN_LAUNCH}{uuid.uuid4().hex}"
        self._ranks: Sequence[RankProcess] = ()
        self._signalled: int | None = None

    def run(self) -> int:
        """Start the ranks and wait for their end; return the exit code of the command.

        0 where all finished; 2 where settings were refused and 1 where a rank failed by itself, which starting again
        would not change; 128 + the signal after a stop; 1 where ranks were lost more than max_restarts times.
        """
        for restart in range(self._max_restarts + 1):
            self._start(restart)
            ended = self._watch()
            code = verdict(ended)
            if code is not None:
                return code
            if self._signalled is not None:
                return BY_SIGNAL + self._signalled
            lost = lost_ranks(ended)
            if restart < self._max_restarts:
                self._say(
                    f"{lost}. Restarting all {self._size} ranks from the last checkpoint "
                    f"(restart {restart + 1} of {self._max_restarts})."
                )
        most = counted(self._max_restarts, "restart")
        self._say(f"{lost}, after {most}; --max-restarts allows no more. Resume the run once the cause is fixed.")
        return FAILED

    def pass_on(self, number: int) -> None:
        """Send every rank a signal that this process received; a signal handler may call it."""
        self._signalled = number
        self._send(number)

    def insist(self) -> None:
        """Have ranks end at once that were sent a signal: by another one, since the same again may be a copy."""
        self._send(signal.SIGTERM if self._signalled == signal.SIGINT else signal.SIGINT)

    def wait_for_end(self) -> int | None:
        """Wait for ranks that were told to end at once; their exit code, None where they have to be killed."""
        deadline = time.monotonic() + self._grace_s
        while any(rank.poll() is None for rank in self._ranks) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        codes = [rank.poll() for rank in self._ranks]
        return None if None in codes else verdict([code for code in codes if code is not None])

    @abstractmethod
    def close(self) -> None:
        """Kill the ranks that are left. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, number: int) -> None:
        for rank in self._ranks:
            if rank.poll() is None:
                with contextlib.suppress(OSError):
                    rank.send_signal(number)

    def _start(self, restart: int) -> None:
        self.close()
        self._start_ranks(restart)
        if self._signalled is not None:  # it came while they started
            self.pass_on(self._signalled)

    @abstractmethod
    def _start_ranks(self, restart: int) -> None:
        """Fill `_ranks`, in the order of ranks, and `_size`, where fewer than before can be started."""

    def _variables(self, restart: int, rank: int, **others: object) -> dict[str, str]:
        """The environment variables of a rank: those of any launcher, and others, which say where it runs."""
        variables = {
            "RANK": rank,
            "WORLD_SIZE": self._size,
            "TORCHELASTIC_RUN_ID": self._launch,
            "TORCHELASTIC_RESTART_COUNT": restart,
            "TORCHELASTIC_MAX_RESTARTS": self._max_restarts,
            **others,
        }
        return {name: str(value) for name, value in variables.items()}

    def _watch(self) -> list[int]:
        """Wait until all ranks have ended; their exit codes, -N by signal N. Those that do not follow one that ended
        badly are killed, and count as lost with it: their code is RANK_LOST."""
        deadline: float | None = None
        killed: set[int] = set()
        codes = [rank.poll() for rank in self._ranks]
        while None in codes:
            time.sleep(_POLL_S)
            codes = [rank.poll() for rank in self._ranks]
            if deadline is None and any(is_bad(code) for code in codes):
                deadline = time.monotonic() + self._grace_s
            if deadline is not None and time.monotonic() > deadline:
                for number, rank in enumerate(self._ranks):
                    if rank.poll() is None:
                        killed.add(number)
                        rank.kill()
        return [RANK_LOST if number in killed else code for number, code in enumerate(codes) if code is not None]


class LocalLauncher(Launcher):
    """Ranks as processes of this machine."""

    _ranks: list[subprocess.Popen[bytes]]

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait()
            if rank.stdin is not None:
                rank.stdin.close()
        self._ranks = []

    def _start_ranks(self, restart: int) -> None:
        own_group: dict[str, Any] = {"process_group": 0}  # Ctrl-C in the terminal reaches them through us, once
        if sys.platform == "win32":
            own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        threads = {}
        if "OMP_NUM_THREADS" not in os.environ:
            threads["OMP_NUM_THREADS"] = max(1, int(usable_cores() / self._size))
        port = free_port()
        for rank in range(self._size):
            variables = self._variables(
                restart,
                rank,
                LOCAL_RANK=rank,
                LOCAL_WORLD_SIZE=self._size,
                GROUP_RANK=0,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **{LAUNCHER_PID: os.getpid()},
                **threads,
            )
            environment = {**os.environ, **variables}
            with held_back():  # a rank begins with `exit_at_once_on_signals`
                rank_process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment, **own_group)
            self._ranks.append(rank_process)


def free_port() -> int:
    """A port of this machine that nothing listened on a moment ago, at none of its addresses."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])
