"""All ranks stop before the same step, whichever of them was asked to."""

import math
import threading
import time
from collections import defaultdict
from typing import Protocol

from ml_pipeline.models.rl.distributed.side_channel import Message, SideChannel
from ml_pipeline.models.rl.ranks import Member, RankLost, described

_LOOK_S = 0.1  # how often a rank that waits for the others looks whether one is gone


class Group(Protocol):
    """What of a group of ranks an agreement needs."""

    size: int
    members: list[Member]
    channel: SideChannel
    timeout_s: float

    def check(self) -> None:
        """Raise RankLost where another rank is known to be gone."""


class StopAgreement:
    """For a rank. One that was asked posts how many steps it has taken, and takes no more; the others then do the same,
    and all go on to the largest number.

    Nothing is sent while nobody asks: a step costs a lock, 0.3 us. Agreeing takes a message to rank 0 and back, twice;
    for a rank that is in an exchange, an update or a hook, the side channel's thread answers at once.
    """

    def __init__(self, group: Group) -> None:
        """All ranks make the agreements of a group's trainers in the same order."""
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
        """Hear nothing more. A later `begin` listens again."""
        self._listens = False
        self._group.channel.ignore(self._hear)

    def is_due(self) -> bool:
        """The same, on all ranks alike. Raises RankLost where a rank is gone, or does not answer."""
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
            if "left" in message:  # it has trained to the end, so that all do
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
    """How many steps the ranks have taken in one call of `train`."""

    def __init__(self) -> None:
        self.taken = 0  # by this rank
        self.posted = False  # it then takes no more until all have posted
        self.of_ranks: dict[int, int] = {}
        self.agreed = threading.Event()
        self.last: float = math.inf  # the step after which all stop, once that is agreed

    def agree(self, size: int, left: set[int]) -> None:
        """Look whether all have posted; those that have `left` took all steps that there are."""
        if self.of_ranks and len(self.of_ranks.keys() | left) == size:
            self.last = math.inf if left - self.of_ranks.keys() else max(self.of_ranks.values())
            self.agreed.set()
