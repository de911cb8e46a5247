"""A request to stop that reaches one rank reaches all, with its reason, whatever they are busy with."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ml_pipeline.models.rl.distributed.rank_group import RankGroup
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.stop import StopRequest

_STOP, _SIGNAL, _RUN = "stop", "signal", "run"


@contextmanager
def stops_shared(ranks: RankContext, stop: StopRequest) -> Iterator[None]:
    """Within the block, a request on any rank is made on all: so the first ends its evaluation, too."""
    group = ranks.group
    if not isinstance(group, RankGroup):
        yield
        return
    number = group.channel.next_number()  # a group's second run is not stopped by what was said to its first
    posts: list[threading.Thread] = []

    def tell() -> None:
        # In a thread: a signal handler calls this, perhaps while the main thread holds the channel's lock.
        message = {_STOP: stop.reason, _SIGNAL: stop.signal, _RUN: number}
        posts.append(threading.Thread(target=group.channel.post, args=(message,), name="stop"))
        posts[-1].start()

    def hear(sender: int, message: dict[str, Any]) -> None:
        if _STOP in message and message[_RUN] == number and not stop.requested:
            stop.request(message[_STOP], signal=message[_SIGNAL])

    with ExitStack() as listening:
        listening.enter_context(stop.told_to(tell))
        group.channel.listen(hear)
        listening.callback(group.channel.ignore, hear)
        yield
    for post in posts:
        post.join()


def share_stop(ranks: RankContext, stop: StopRequest) -> None:
    """Let all ranks know of a request that any of them knows of; the reason of the first of these counts.

    On return, all who listen to this rank's request have been told: a trainer that listens takes no further step.
    """
    if ranks.size == 1:
        return
    known = ranks.gather("whether to stop", [stop.reason, stop.signal] if stop.requested else None)
    request = next((each for each in known if each is not None), None)
    if request is not None:
        reason, number = request
        # Also where it was made already: another thread, such as the channel's, may be about to tell the listeners.
        stop.request(reason, signal=number)
        stop.reason, stop.signal = reason, number
