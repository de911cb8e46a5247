"""What the ranks of a run do together: each its part, or the first alone with what comes of it known to all."""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.distributed.exchange import pack, unpack
from ml_pipeline.models.rl.distributed.ranks import OneRank, RankLost, Ranks, RanksDiffer, described

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
                    f"{self.name(self.rank).capitalize()} has come to {what}, but {self.name(rank)} to {head['what']}; "
                    "start all ranks by the same command."
                )
        return heads
