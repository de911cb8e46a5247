"""Ranks that are threads of the test's process, with a side channel and without torch's exchanges."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ml_pipeline.models.rl.distributed.rendezvous import rendezvous
from ml_pipeline.models.rl.distributed.side_channel import SideChannel
from ml_pipeline.models.rl.ranks import RankLost, this_process


class Store:
    """What ranks need of torch's store in order to meet."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> str:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]


class ThreadRank:
    """One rank of a group of threads. heard: all messages with their senders, in their order."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size, self.timeout_s = rank, size, 60.0
        self.members = [this_process()] * size
        self.heard: list[tuple[int, Any]] = []
        self.lost = False
        self.channel = SideChannel(rank, rendezvous(store, rank, size, address="127.0.0.1", timeout_s=60.0).connections)
        self.channel.listen(lambda sender, message: self.heard.append((sender, message)))

    def check(self) -> None:
        if any("lost" in message for _, message in self.heard):
            raise RankLost("One is lost.")


@contextlib.contextmanager
def threads(size: int) -> Iterator[list[ThreadRank]]:
    store = Store()
    with ThreadPoolExecutor(size) as pool:
        ranks = list(pool.map(lambda rank: ThreadRank(store, rank, size), range(size)))
        try:
            yield ranks
        finally:
            for rank in reversed(ranks):
                rank.channel.close()
