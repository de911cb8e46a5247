"""Finding the ranks that are gone, by the side channel, or that are missing from an exchange, by the store.

torch does not give access to its connections. On Linux they are found among the sockets of this process, so that they
end if the other machine cannot be reached, and can be cut if a rank is gone.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ml_pipeline.models.rl.distributed.side_channel import Message, end_when_unreachable
from ml_pipeline.models.rl.ranks import Member, RankLost, described

FOLLOWED = "it lost another rank"
"""The reason of a rank that ended because of another one."""
_NOTICE_S = 2.0  # torch and the side channel may notice a loss this far apart
_LOOK_S = 2e-3
_PLACE_IN_SOURCE = re.compile(r"^\[\S+:\d+\] ")  # in torch's C++ code
_ADVICE = " This is typically caused by "  # starts three sentences of advice in gloo's errors
_REMEDY = "start all ranks again from the last checkpoint, and look for the reason in the output of that one"


class LostRanks:
    """The other ranks that this rank knows to be gone. `note` receives the messages of the side channel."""

    def __init__(self, store: Any, rank: int, members: Sequence[Member]) -> None:
        """store: the store of torch, where each rank counts the exchanges that it has reached."""
        self._store = store
        self._rank = rank
        self._members = members
        self._n_exchanges = 0
        self._lost: dict[int, str] = {}

    def __bool__(self) -> bool:
        """Whether another rank is known to be gone."""
        return bool(self._lost)

    def note(self, sender: int, message: Message) -> None:
        """Receive a message of the side channel."""
        if "lost" in message and message["lost"] != self._rank:
            self._lost.setdefault(message["lost"], message["why"])

    def check(self) -> None:
        """Raise RankLost if another rank is known to be gone."""
        if self._lost:
            raise RankLost(f"{self._who_is_gone()}; {_REMEDY}.")

    def arrive(self) -> None:
        """Record in the store that this rank reached its next exchange. Raises RuntimeError if the store is gone."""
        self._n_exchanges += 1
        self._store.set(f"arrived/{self._rank}", str(self._n_exchanges))

    def error(self, what: str, error: RuntimeError, *, waited_s: float, timeout_s: float) -> RankLost:
        """The error to raise after torch raised `error` in an exchange; it names the ranks that are gone or late.

        waited_s: how long the exchange had waited, out of timeout_s.
        """
        # First, because the process of the store may end while this rank waits below.
        late = "" if self._is_known() else self._who_is_late(waited_s, timeout_s)
        deadline = time.monotonic() + _NOTICE_S
        while not self._is_known() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        who = self._who_is_gone() if self._is_known() else late
        return RankLost(
            f"Rank {self._rank} of {len(self._members)} waited for {what}, but {who} ({told_by_torch(error)}); "
            f"{_REMEDY}."
        )

    def _is_known(self) -> bool:
        """Whether the side channel has reported the rank that was lost first."""
        return any(why != FOLLOWED for why in self._lost.copy().values())

    def _who_is_gone(self) -> str:
        lost = self._lost.copy()
        first = {rank: why for rank, why in lost.items() if why != FOLLOWED} or lost
        verb = "is" if len(first) == 1 else "are"
        return f"{described(self._members, sorted(first))} {verb} gone: {', '.join(dict.fromkeys(first.values()))}"

    def _who_is_late(self, waited_s: float, timeout_s: float) -> str:
        try:
            late = [rank for rank in range(len(self._members)) if self._n_arrived(rank) < self._n_exchanges]
        except RuntimeError:  # the process that held the store has ended
            return "the process that holds the group's store is gone"
        if not late and waited_s < timeout_s:
            return "the connection to a rank broke"
        if not late:  # a rank stopped within the exchange
            others = [rank for rank in range(len(self._members)) if rank != self._rank]
            one_of = "" if len(others) == 1 else "one of "
            return f"{one_of}{described(self._members, others)} did not answer within {timeout_s:g} s"
        who = described(self._members, late)
        if waited_s < timeout_s:
            return f"a connection broke before {who} came"
        return f"{who} did not come within {timeout_s:g} s"

    def _n_arrived(self, rank: int) -> int:
        key = f"arrived/{rank}"
        return int(self._store.get(key)) if self._store.check([key]) else 0


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__).strip()


def told_by_torch(error: BaseException) -> str:
    """The message of an error of torch, without the position in its source and without gloo's advice.

    >>> error = "[/torch/gloo/pair.cc:537] Read error: Connection reset by peer. This is typically caused by bugs."
    >>> told_by_torch(RuntimeError(error))
    'Read error: Connection reset by peer'
    """
    return _PLACE_IN_SOURCE.sub("", first_line(error)).partition(_ADVICE)[0].removesuffix(".")


_FOLDER = "/proc/self/fd"


def open_sockets() -> dict[str, int]:
    """The sockets of this process: from their names in the kernel to file descriptors."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_FOLDER):
            with contextlib.suppress(OSError):  # the file was closed meanwhile
                target = os.readlink(f"{_FOLDER}/{name}")
                if target.startswith("socket:"):
                    found[target] = int(name)
    return found


@contextlib.contextmanager
def sockets_opened() -> Iterator[set[str]]:
    """The names of the sockets that this process opens within the block; the set is filled at the end of the block."""
    opened: set[str] = set()
    others = open_sockets().keys()
    try:
        yield opened
    finally:
        opened |= open_sockets().keys() - others


def watch(names: Collection[str]) -> None:
    """Make the connections of these sockets end if the other machine cannot be reached."""
    _each(names, end_when_unreachable)


def cut(names: Collection[str]) -> None:
    """End the connections of these sockets, so that calls waiting for them return. Listening sockets stay open."""
    _each(names, lambda connection: connection.shutdown(socket.SHUT_RDWR))


def _each(names: Collection[str], function: Callable[[socket.socket], object]) -> None:
    """Call the function with each TCP connection among these sockets."""
    for name, descriptor in open_sockets().items():
        if name in names:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                is_tcp = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP
                if is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    function(connection)
