"""Ranks that train one policy: the group, of one as well, which environments each owns, and what they send each other.

Values are sent as bytes: arrays as they are, all else as JSON. Reading it runs no code. What fails on one rank is
raised on all of them, so that they go on alike; a digest of all that they act and learn by says whether they are still
equal.
"""

import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.state import PickledState
from ml_pipeline.models.rl.core.workers.open import split
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runtime.seeding import generator_state


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


class Stop(Protocol):
    """When a trainer's `train` is to return."""

    def begin(self) -> None:
        """`train` begins."""

    def end(self) -> None:
        """`train` ends; a request that it followed, or that came too late for it, is forgotten."""

    def request(self) -> None:
        """Ask for it; may be called from a signal handler or another thread."""

    def is_due(self) -> bool:
        """Whether to stop before the next step; called before each."""

    def close(self) -> None:
        """The trainer is closed; may be called twice."""


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

    def gather_values(self, value: Any, what: str) -> list[Any]:
        """The same of values that `pack` takes; one rank alone gets its own back, not a copy."""

    def share(self, payload: bytes | None, what: str, root: int = 0) -> bytes:
        """The payload of rank `root`, on every rank; that of others is not read. Raises RankLost."""

    def gather_tensor(self, part: Tensor, out: Tensor, what: str = "gradients") -> None:
        """Write the parts of all ranks into `out`, (size, *part.shape), in their order. Raises RankLost."""

    def check(self) -> None:
        """Raise RankLost where another rank is known to be gone; it sends nothing."""

    def new_stop(self) -> Stop:
        """For a trainer of this group, whose ranks all stop before the same step; all make theirs in the same order."""


class OneRank:
    """The group of a process that trains alone: it sends nothing."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.members = [this_process()]

    def gather(self, payload: bytes, what: str) -> list[bytes]:
        return [payload]

    def gather_values(self, value: Any, what: str) -> list[Any]:
        return [value]

    def share(self, payload: bytes | None, what: str, root: int = 0) -> bytes:
        assert payload is not None
        return payload

    def gather_tensor(self, part: Tensor, out: Tensor, what: str = "gradients") -> None:
        out[0].copy_(part)

    def check(self) -> None:
        """There is no other one."""

    def new_stop(self) -> Stop:
        return OwnStop()


class OwnStop:
    """For a process that trains alone: at once."""

    def __init__(self) -> None:
        self._requested = False

    def begin(self) -> None:
        """A request that came before is kept."""

    def end(self) -> None:
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def is_due(self) -> bool:
        return self._requested

    def close(self) -> None:
        """There is nothing to free."""


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


def num_envs_of_all(ranks: Ranks, own: int) -> int:
    """How many environments all ranks have together. Raises UserError where they are not divided evenly."""
    numbers = ranks.gather_values(own, "the numbers of environments")
    total = sum(numbers)
    divided = [rows_of(rank, ranks.size, total) for rank in range(ranks.size)]
    if numbers != [rows.stop - rows.start for rows in divided]:
        raise UserError(
            f"{total} environments are not divided among {ranks.size} ranks as evenly as can be, the first with one "
            f"more: they have {', '.join(map(str, numbers))}; hand each rank envs[rows_of(rank, size, n_envs)]."
        )
    return total


Array = np.ndarray
_LENGTH_BYTES = 8  # of the JSON text, which comes first


def pack(value: Any) -> bytes:
    """A tree of dicts, lists, tuples, plain values, bytes, arrays and tensors on the CPU. Raises TypeError for others.

    It takes one copy of the arrays: 30 us for 1 MB.
    """
    parts: list[bytes | memoryview] = []
    tree = json.dumps(_Packing(parts).tree_of(value)).encode()
    return b"".join([len(tree).to_bytes(_LENGTH_BYTES, "little"), tree, *parts])


def unpack(packed: bytes) -> Any:
    """What `pack` was given. Arrays are copies that can be written to."""
    n = int.from_bytes(packed[:_LENGTH_BYTES], "little") + _LENGTH_BYTES
    return _value_of(json.loads(packed[_LENGTH_BYTES:n]), memoryview(packed)[n:])


class _Packing:
    """Turns values into what JSON can hold, and collects the bytes that it cannot hold."""

    def __init__(self, parts: list[bytes | memoryview]) -> None:
        self._parts = parts
        self._n_bytes = 0

    def tree_of(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.tree_of(each) for each in value]
        if isinstance(value, tuple):
            return {"tuple": [self.tree_of(each) for each in value]}
        if isinstance(value, dict):
            return {"dict": [[self.tree_of(key), self.tree_of(each)] for key, each in value.items()]}
        if isinstance(value, bytes):
            return {"pickle" if isinstance(value, PickledState) else "bytes": self._add(bytes(value))}
        if isinstance(value, Array | Tensor):
            kind, array = ("array", value) if isinstance(value, Array) else ("tensor", value.numpy())
            of_bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            return {kind: [array.dtype.str, array.shape, self._add(of_bytes.data)]}
        raise TypeError(f"A {type(value).__name__} cannot be sent to other ranks.")

    def _add(self, part: bytes | memoryview) -> list[int]:
        self._parts.append(part)
        self._n_bytes += len(part)
        return [self._n_bytes - len(part), self._n_bytes]


def _value_of(tree: Any, data: memoryview) -> Any:
    if isinstance(tree, list):
        return [_value_of(each, data) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tuple":
        return tuple(_value_of(each, data) for each in content)
    if kind == "dict":
        return {_value_of(key, data): _value_of(each, data) for key, each in content}
    if kind in ("array", "tensor"):
        dtype, shape, (start, stop) = content
        array = np.frombuffer(data[start:stop], dtype).reshape(shape).copy()
        return array if kind == "array" else torch.from_numpy(array)
    start, stop = content
    part = bytes(data[start:stop])
    return PickledState(part) if kind == "pickle" else part


Result = TypeVar("Result")


def first_reason(ranks: Ranks, what: str, own: str) -> str:
    """The first text that is not empty, of the texts of all ranks in their order; "" where all are."""
    return next(filter(None, ranks.gather_values(own, what)), "")


def states_put(ranks: Ranks, put: Callable[[], Result], *, first_env: int) -> Result | None:
    """What `put` returns, which puts this rank's environments into states; first_env: the index of the first of them.

    Raises StateNotAvailable where an environment of any rank does not take its state.
    """
    result, failed, cause = None, None, None
    try:
        result = put()
    except StateNotAvailable as error:
        failed, cause = (first_env + error.index, error.reason), error
    for found in ranks.gather_values(failed, "whether states can be restored"):
        if found is not None:
            raise StateNotAvailable(*found) from cause
    return result


def digest_of(policy: Policy, generator: np.random.Generator) -> str:
    """SHA-256 of the weights and statistics, and of where the generator of noise stands.

    90 us for a 64x64 network, 4 ms for a million weights.
    """
    state = policy.state_dict()
    rest = [state["normalizer"], state["value_normalizer"], generator_state(generator)]
    digest = hashlib.sha256(json.dumps(rest).encode())
    for weight in state["network"].values():
        digest.update(weight.cpu().numpy().tobytes())
    return digest.hexdigest()


def check_equal(ranks: Ranks, digests: list[str]) -> None:
    """Raise RanksDiffer where the digests of ranks, in their order, are not all the same.

    Those with the digest that most have count as right; of as many, that of the lowest rank.
    """
    right = max(digests, key=digests.count)
    others = [rank for rank, digest in enumerate(digests) if digest != right]
    if others:
        where = described(ranks.members, others)
        raise RanksDiffer(
            f"The weights of {where} differ from those of rank {digests.index(right)}, or their random numbers do, "
            "although they learned from the same rollouts; give all ranks the same seed, the same kind of processor "
            "and the same versions, and start them again from the last checkpoint."
        )
