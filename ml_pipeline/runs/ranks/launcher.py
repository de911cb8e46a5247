"""Watches the ranks of one run, passes signals on, and starts all again where one is lost, wherever they run.

A rank finds its place in torchrun's environment variables.
"""

import contextlib
import signal
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from ml_pipeline.config.wording import counted
from ml_pipeline.runs.ranks.exit_codes import BY_SIGNAL, FAILED, RANK_LOST, is_bad, lost_ranks, verdict
from ml_pipeline.runs.ranks.rank_info import OWN_LAUNCH

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
                    f"{lost}. All {self._size} ranks start again from the last checkpoint "
                    f"(restart {restart + 1} of {self._max_restarts})."
                )
        most = counted(self._max_restarts, "restart")
        self._say(f"{lost}, after {most}; --max-restarts allows no more. Resume the run once the cause is mended.")
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
