"""Collective calls of a run: `each` runs on every rank, `first` on rank 0 and broadcasts the result.

A stop request on one rank also reaches all others, and the metrics and messages of an iteration combine those of all
ranks.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, TypeVar

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.distributed.rank_group import RankGroup
from ml_pipeline.models.rl.ranks import OneRank, RankLost, Ranks, RanksDiffer, described, pack, unpack
from ml_pipeline.runs.stop import StopRequest

Result = TypeVar("Result")

_MOST_GATHERED = 1 << 16  # bytes; larger values are sent separately, not padded for every rank


class SharedError(UserError):
    """An error of one or more ranks, raised on all of them: only the first has to print it."""


class RankContext:
    """A group of ranks as a run uses it. All ranks call the same methods in the same order.

    If a rank fails between two calls, or within a longer `each`, the next call of the others raises. A single rank
    sends nothing, and raises its errors unchanged.
    """

    def __init__(self, group: Ranks | None = None, *, launch: str | None = None) -> None:
        """group: None for a process that trains alone. launch: id of the launch that this rank belongs to, if any.
        Collective: all ranks construct it together, since launches may differ between machines."""
        self.group = group = group or OneRank()
        self.rank = group.rank
        self.size = group.size
        self.is_first = group.rank == 0
        self.launches = tuple(sorted({each for each in self.gather("the launch", launch) if each is not None}))
        """Launch ids of the ranks: one, or one per machine."""

    def name(self, rank: int) -> str:
        """The rank and its machine, for the middle of a sentence."""
        return described(self.group.members, [rank])

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, in rank order: plain values, bytes, arrays and tensors.

        what: name of the call, for errors. Raises RankLost.
        """
        if self.size == 1:
            return [value]
        return [head["value"] for head in self._meet(what, {"value": value})]

    def each(self, what: str, function: Callable[[], Result]) -> Result:
        """The result of `function` on this rank. A UserError on any rank is raised on all as SharedError; after any
        other error the others raise RankLost."""
        if self.size == 1:
            return function()
        try:
            result = function()
        except (SharedError, RankLost):
            raise
        except UserError as error:
            self._fail(what, error)
        self._meet(what, {})
        return result

    def first(
        self, what: str, function: Callable[[], Result], *, send: Callable[[Result], Any] = lambda result: result
    ) -> Any:
        """The result of `function`, called on the first rank only; the others get `send(result)`.

        A UserError is raised on all as SharedError. Raises RankLost.
        """
        if self.size == 1:
            return function()
        if not self.is_first:
            head = self._meet(what, {})[0]
            return unpack(head["sent"] if "sent" in head else self.group.share(None, what))
        try:
            result = function()
            sent = pack(send(result))
        except UserError as error:
            self._fail(what, error)
        is_large = len(sent) > _MOST_GATHERED
        self._meet(what, {} if is_large else {"sent": sent})
        if is_large:
            self.group.share(sent, what)
        return result

    def _fail(self, what: str, error: UserError) -> NoReturn:
        try:
            self._meet(what, {"error": str(error)})
        except SharedError as known:
            raise known from error
        raise AssertionError("an error that is brought is raised")

    def _meet(self, what: str, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Each rank's contribution to this call. Raises SharedError if one of them is an error."""
        heads = [unpack(packed) for packed in self.group.gather(pack({"what": what, **own}), what)]
        errors = {rank: head["error"] for rank, head in enumerate(heads) if "error" in head}
        if errors:
            rank, error = next(iter(errors.items()))
            raise SharedError(error if len(errors) == self.size > 1 or rank == 0 else f"On {self.name(rank)}: {error}")
        for rank, head in enumerate(heads):
            if head["what"] != what:
                raise RanksDiffer(
                    f"{self.name(self.rank).capitalize()} has reached {what}, but {self.name(rank)} {head['what']}; "
                    "start all ranks with the same command."
                )
        return heads


_STOP, _SIGNAL, _RUN = "stop", "signal", "run"


@contextmanager
def stops_shared(ranks: RankContext, stop: StopRequest) -> Iterator[None]:
    """Within the block, a stop request on any rank reaches all, so that the first ends its evaluation too."""
    group = ranks.group
    if not isinstance(group, RankGroup):
        yield
        return
    number = group.channel.next_number()  # a late message must not stop the group's next run
    posts: list[threading.Thread] = []

    def tell() -> None:
        # In a thread: a signal handler may call this while the main thread holds the channel's lock.
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
    """Share a stop request of any rank with all ranks; the reason of the first such rank counts.

    On return, all listeners of this rank's request have been called: a listening trainer takes no further step.
    """
    if ranks.size == 1:
        return
    known = ranks.gather("whether to stop", [stop.reason, stop.signal] if stop.requested else None)
    request = next((each for each in known if each is not None), None)
    if request is not None:
        reason, number = request
        # Even if already requested: another thread, such as the channel's, may not have called the listeners yet.
        stop.request(reason, signal=number)
        stop.reason, stop.signal = reason, number


_SYSTEM = "system/"
_WORKERS = "workers/count"
_OF_ONE_GPU = "system/gpu_percent"


def of_all_ranks(
    ranks: RankContext, figures: Mapping[str, float], sentences: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """The metrics and messages of one iteration, combined over all ranks; the result is the same on every rank.

    System metrics appear per rank, as system/rank1/rss_mb, and once for the run: the mean of GPU utilization, the sum
    of the others and of the workers. All other metrics are equal on all ranks. A single rank returns its own.
    """
    if ranks.size == 1:
        return dict(figures), list(sentences)
    of_rank = f"Rank {ranks.rank}: "
    own = [dict(figures), [of_rank + sentence for sentence in sentences]]
    told = ranks.gather("what the machines tell", own)
    return _of_the_run([each for each, _ in told]), [sentence for _, each in told for sentence in each]


def _of_the_run(everybody: Sequence[dict[str, float]]) -> dict[str, float]:
    together = dict(everybody[0])
    for name in {name: None for each in everybody for name in each if name.startswith(_SYSTEM) or name == _WORKERS}:
        values = [each[name] for each in everybody if name in each]
        together[name] = sum(values) / (len(values) if name == _OF_ONE_GPU else 1)
    for rank, each in enumerate(everybody):
        for name, value in each.items():
            if name.startswith(_SYSTEM):
                together[f"{_SYSTEM}rank{rank}/{name.removeprefix(_SYSTEM)}"] = value
    return together
