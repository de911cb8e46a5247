"""Collective calls of a run: each rank its part, or the first alone with its result known to all.

Besides: a request to stop that reaches one rank reaches all, and the figures and sentences of an iteration are those of
all ranks.
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

_MOST_GATHERED = 1 << 16  # bytes; what is larger is not padded for every rank, but sent once more


class SharedError(UserError):
    """What is wrong on one rank or several, raised on all of them: the first alone has to tell it."""


class RankContext:
    """A group of ranks as a run uses it. All ranks call the same methods in the same order.

    If a rank fails between two calls, as a part of a longer `each`, the others hear of it in their next call. One rank
    alone sends nothing, and its errors are raised as they are.
    """

    def __init__(self, group: Ranks | None = None, *, launch: str | None = None) -> None:
        """group: None for a process that trains alone. launch: the name of the start that this rank belongs to, if it
        has one; all ranks make this together, since those of another machine may have another one."""
        self.group = group = group or OneRank()
        self.rank = group.rank
        self.size = group.size
        self.is_first = group.rank == 0
        self.launches = tuple(sorted({each for each in self.gather("the launch", launch) if each is not None}))
        """The starts that the ranks belong to: one, or one for each machine."""

    def name(self, rank: int) -> str:
        """A rank with its machine, in the middle of a sentence."""
        return described(self.group.members, [rank])

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, in their order; of plain values, bytes, arrays and tensors.

        what: names it, should a rank not come. Raises RankLost.
        """
        if self.size == 1:
            return [value]
        return [head["value"] for head in self._meet(what, {"value": value})]

    def each(self, what: str, function: Callable[[], Result]) -> Result:
        """What `function` returns on this rank. A UserError on any rank is raised on all as SharedError; another error
        leaves the others to RankLost."""
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
        """What `function` returns on the first rank, which alone calls it; the others get what `send` makes of it.

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
        """What each rank brings to this call. Raises SharedError where one brings an error."""
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


_SYSTEM = "system/"
_WORKERS = "workers/count"
_OF_ONE_GPU = "system/gpu_percent"


def of_all_ranks(
    ranks: RankContext, figures: Mapping[str, float], sentences: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """What one line of metrics tells, and what is said, of what each rank would have told; the same on every rank.

    Figures of the machine stand once by rank, as system/rank1/rss_mb, and once for the run: the mean of the GPUs'
    use, and the sum of all others and of the workers. What else there is, ranks agree on. One rank alone tells its own.
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
