"""What training needs of a group of ranks: its errors, the group of one, and which environments each rank owns."""

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.workers.open import split


class RankLost(UserError):
    """A rank did not take part in an exchange: it ended, its machine or network is gone, or it took too long.

    Those that are left cannot go on without it; all start again from the last checkpoint.
    """


class RanksDiffer(UserError):
    """Ranks that must be equal are not: in their weights, or in what they were started with."""


class Member(NamedTuple):
    """Where a rank runs."""

    host: str
    pid: int


def this_process() -> Member:
    return Member(socket.gethostname(), os.getpid())


def described(members: Sequence[Member], ranks: Sequence[int]) -> str:
    """Ranks by number, host and process, for an error.

    >>> described([Member("a", 7), Member("b", 8), Member("b", 9)], [0, 2])
    'rank 0 (a, process 7) and rank 2 (b, process 9)'
    """
    *but_last, last = [f"rank {rank} ({members[rank].host}, process {members[rank].pid})" for rank in ranks]
    return f"{', '.join(but_last)} and {last}" if but_last else last


class Ranks(Protocol):
    """A group of processes that train one policy. Every rank calls the same methods in the same order."""

    @property
    def rank(self) -> int:
        """Of this process, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def members(self) -> list[Member]:
        """Where each rank runs."""

    def gather(self, payload: bytes, what: str) -> list[bytes]:
        """The payloads of all ranks in their order, on every rank; their sizes may differ.

        what: names the exchange in an error. Raises RankLost. Each rank receives size - 1 payloads, each padded to the
        largest.
        """

    def share(self, payload: bytes | None, what: str, root: int = 0) -> bytes:
        """The payload of rank `root`, on every rank; that of others is not read. Raises RankLost."""

    def gather_tensor(self, part: Tensor, out: Tensor, what: str = "gradients") -> None:
        """Write the parts of all ranks into `out`, (size, *part.shape), in their order. Raises RankLost."""

    def check(self) -> None:
        """Raise RankLost where another rank is known to be gone; it sends nothing."""


class OneRank:
    """The group of a process that trains alone: it sends nothing."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.members = [this_process()]

    def gather(self, payload: bytes, what: str) -> list[bytes]:
        return [payload]

    def share(self, payload: bytes | None, what: str, root: int = 0) -> bytes:
        assert payload is not None
        return payload

    def gather_tensor(self, part: Tensor, out: Tensor, what: str = "gradients") -> None:
        out[0].copy_(part)

    def check(self) -> None:
        """There is no other one."""


def rows_of(rank: int, size: int, num_envs: int) -> slice:
    """The rows of one rank of `size`; the first ranks have one more where it does not divide.

    Raises UserError where there are fewer environments than ranks.

    >>> [rows_of(rank, 3, 8) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    >>> rows_of(0, 1, 0)  # one rank owns all that there are
    slice(0, 0, None)
    """
    if num_envs < size > 1:
        raise UserError(
            f"{size} ranks need at least {size} environments, one each, but n_envs is {num_envs}; raise n_envs to "
            f"{size} or more (a multiple of {size} gives all ranks as many), or start at most {num_envs} ranks."
        )
    mine = split(range(num_envs), size)[rank]
    return slice(mine.start, mine.stop)
