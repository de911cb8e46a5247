"""Starts the ranks of one run, watches them, forwards signals, and restarts all if one is lost.

`Launcher` is the base class; `LocalLauncher` starts ranks on this machine. A rank reads its place from torchrun's
environment variables.

Why not torch's elastic launch, which torchrun uses: it restarts all ranks after any exit code except 0, even if
settings were refused or a rank failed by itself; after a signal it kills ranks that take longer than a fixed time to
save, and loses their exit codes; ranks do not notice its end, so they outlive an agent that is killed; and it would
load torch, 2 s and 290 MB, into the process that only watches. Ranks that torchrun starts follow its rules.
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
"""The exit code of a rank that could not continue without another: EX_TEMPFAIL of BSD's sysexits.h."""
REFUSED = 2
FAILED = 1
BY_SIGNAL = 128
"""Plus the signal's number: the exit code of a rank that saved and stopped on request."""
STOPPED = frozenset(BY_SIGNAL + number for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", 1)))


def is_bad(code: int | None) -> bool:
    """True if a rank's exit with this code forces the others to end; None: still running."""
    return code is not None and code != 0 and code not in STOPPED


def verdict(codes: Sequence[int]) -> int | None:
    """The exit code of the command; None if ranks were lost, so that a restart can help.

    2 if a rank refused its settings and 1 if one failed by itself: a restart would not help. 0 if the first rank has
    finished the run, even if another one was killed after its part was done.

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
    """Which ranks were lost and how, as the start of a sentence.

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
    """A started rank, with the interface of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that killed it; None while it runs. Never blocks."""

    def send_signal(self, number: int, /) -> None:
        """Raises OSError if it has ended."""

    def kill(self) -> None: ...


class Launcher(ABC):
    """Call `run` once; `close` kills remaining ranks. Subclasses start them."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: int,
        max_restarts: int,
        say: Callable[[str], None],
        grace_s: float = _GRACE_S,
    ) -> None:
        """command: of every rank. say: prints each restart and its reason. grace_s: time for the others to end by
        themselves after a rank has failed."""
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

        0 if all finished; 2 if settings were refused and 1 if a rank failed by itself, since a restart would not
        help; 128 + the signal after a stop; 1 if ranks were lost more than max_restarts times.
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
        """Forward a signal to every rank; a signal handler may call it."""
        self._signalled = number
        self._send(number)

    def insist(self) -> None:
        """End signalled ranks at once, by a different signal: ranks may take the same one for a copy."""
        self._send(signal.SIGTERM if self._signalled == signal.SIGINT else signal.SIGINT)

    def wait_for_end(self) -> int | None:
        """Wait for ranks after `insist`; returns their exit code, None if they have to be killed."""
        deadline = time.monotonic() + self._grace_s
        while any(rank.poll() is None for rank in self._ranks) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        codes = [rank.poll() for rank in self._ranks]
        return None if None in codes else verdict([code for code in codes if code is not None])

    @abstractmethod
    def close(self) -> None:
        """Kill the remaining ranks. May be called twice."""

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
        if self._signalled is not None:  # arrived during the start
            self.pass_on(self._signalled)

    @abstractmethod
    def _start_ranks(self, restart: int) -> None:
        """Fill `_ranks`, in rank order, and `_size`, if fewer than before can be started."""

    def _variables(self, restart: int, rank: int, **others: object) -> dict[str, str]:
        """The environment variables of a rank. others: the launcher's own, for where it runs."""
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
        """Wait until all ranks have ended; returns their exit codes, -N for signal N. After one fails, ranks that do
        not end in time are killed and count as lost: their code is RANK_LOST."""
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
    """Runs ranks as local processes."""

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
        own_group: dict[str, Any] = {"process_group": 0}  # so that Ctrl-C reaches them once, through us
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
            with held_back():  # ranks start by `exit_at_once_on_signals`
                rank_process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment, **own_group)
            self._ranks.append(rank_process)


def free_port() -> int:
    """A port of this machine that was free a moment ago, on all of its addresses."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])
