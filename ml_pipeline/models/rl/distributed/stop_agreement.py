"""Stopping all ranks before the same step, after a request on any of them."""

import math
import threading
import time
from collections import defaultdict
from typing import Protocol

from ml_pipeline.models.rl.distributed.side_channel import Message, SideChannel
from ml_pipeline.models.rl.ranks import Member, RankLost, described

_LOOK_S = 0.1  # how often a waiting rank checks whether another one is gone


class Group(Protocol):
    """The parts of a group of ranks that an agreement uses."""

    size: int
    members: list[Member]
    channel: SideChannel
    timeout_s: float

    def check(self) -> None:
        """Raise RankLost if another rank is known to be gone."""


class StopAgreement:
    """One rank's part in agreeing on a step to stop at.

    After a request, a rank posts the number of its steps and pauses. The others do the same, and all continue to the
    largest number. Without a request nothing is sent, and a step costs one lock, 0.3 us. Agreeing takes two messages to
    rank 0 and back. If a rank is in an exchange, an update or a hook, the thread of the side channel answers at once.
    """

    def __init__(self, group: Group) -> None:
        """All ranks create the agreements of a group in the same order."""
        self._group = group
        self._number = group.channel.next_number()
        self._listens = False
        self._lock = threading.Lock()
        self._requested = False
        self._counts: defaultdict[int, _Counts] = defaultdict(_Counts)  # by call of train, the same on all ranks
        self._call = 0  # the one under way, or the last
        self._left: set[int] = set()

    def begin(self) -> None:
        with self._lock:
            self._call += 1
        if not self._listens:
            self._listens = True
            self._group.channel.listen(self._hear)
        with self._lock:
            early = bool(self._counts[self._call].of_ranks)  # another rank was faster
        if early:
            self._freeze_and_post(self._call)

    def end(self) -> None:
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def close(self) -> None:
        """Stop listening. A later `begin` listens again."""
        self._listens = False
        self._group.channel.ignore(self._hear)

    def is_due(self) -> bool:
        """Whether to stop before the next step; equal on all ranks. Raises RankLost if a rank is gone or silent."""
        self._group.check()
        with self._lock:
            counts = self._counts[self._call]
            if not (counts.posted or self._requested):
                counts.taken += 1
                return False
        self._freeze_and_post(self._call)
        self._wait_for_all(counts)
        if counts.taken >= counts.last:
            return True
        counts.taken += 1
        return False

    def _freeze_and_post(self, call: int) -> None:
        with self._lock:
            counts = self._counts[call]
            if counts.posted:
                return
            counts.posted = True
        self._group.channel.post({"trainer": self._number, "call": call, "taken": counts.taken})

    def _hear(self, sender: int, message: Message) -> None:
        is_own = message.get("trainer") == self._number
        with self._lock:
            if "left" in message:  # the rank has trained to the end, so all ranks do
                self._left.add(message["left"])
            elif is_own:
                self._counts[message["call"]].of_ranks[sender] = message["taken"]
            for counts in self._counts.values():
                counts.agree(self._group.size, self._left)
        if is_own and message["call"] <= self._call:
            self._freeze_and_post(message["call"])

    def _wait_for_all(self, counts: "_Counts") -> None:
        end = time.monotonic() + self._group.timeout_s
        while not counts.agreed.wait(_LOOK_S):
            self._group.check()
            if time.monotonic() > end:
                late = [rank for rank in range(self._group.size) if rank not in counts.of_ranks]
                raise RankLost(
                    f"Training was asked to stop, but {described(self._group.members, late)} did not say within "
                    f"{self._group.timeout_s:g} s after which step; end all ranks."
                )


class _Counts:
    """The steps that the ranks have taken in one call of `train`."""

    def __init__(self) -> None:
        self.taken = 0  # by this rank
        self.posted = False  # if so, this rank pauses until all ranks have posted
        self.of_ranks: dict[int, int] = {}
        self.agreed = threading.Event()
        self.last: float = math.inf  # the step after which all ranks stop, once agreed

    def agree(self, size: int, left: set[int]) -> None:
        """Check whether all ranks have posted; ranks that have `left` have taken all steps."""
        if self.of_ranks and len(self.of_ranks.keys() | left) == size:
            self.last = math.inf if left - self.of_ranks.keys() else max(self.of_ranks.values())
            self.agreed.set()
