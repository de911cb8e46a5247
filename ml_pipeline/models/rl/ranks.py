"""The group of ranks that train one policy, which may be a single process: dividing environments and sending values.

Values are sent as bytes: arrays unchanged, and all else as JSON. Reading them runs no code. An error on one rank is
raised on all of them, so that they continue in the same state. A digest of weights, statistics and random numbers shows
whether they are still equal.
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
    """A rank did not take part in an exchange: it ended, its machine or network failed, or it took too long.

    The other ranks cannot continue without it; start all of them again from the last checkpoint.
    """


class RanksDiffer(UserError):
    """Ranks differ in their weights or in their settings, which must be equal."""


class Member(NamedTuple):
    """The host and the process of a rank."""

    host: str
    pid: int


def this_process() -> Member:
    """The host and the id of this process."""
    return Member(socket.gethostname(), os.getpid())


def described(members: Sequence[Member], ranks: Sequence[int]) -> str:
    """Ranks with their hosts and processes, for error messages.

    >>> described([Member("a", 7), Member("b", 8), Member("b", 9)], [0, 2])
    'rank 0 (a, process 7) and rank 2 (b, process 9)'
    """
    *but_last, last = [f"rank {rank} ({members[rank].host}, process {members[rank].pid})" for rank in ranks]
    return f"{', '.join(but_last)} and {last}" if but_last else last


class Stop(Protocol):
    """Decides when `train` returns early."""

    def begin(self) -> None:
        """Called when `train` begins."""

    def end(self) -> None:
        """Called when `train` ends; clears the request."""

    def request(self) -> None:
        """Request a stop; may be called from a signal handler or another thread."""

    def is_due(self) -> bool:
        """Whether to stop before the next step; called before each step."""

    def close(self) -> None:
        """Called when the trainer is closed; may be called twice."""


class Ranks(Protocol):
    """A group of processes that train one policy. Every rank calls the same methods in the same order."""

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def members(self) -> list[Member]:
        """The host and the process of each rank."""

    def gather(self, payload: bytes, what: str) -> list[bytes]:
        """Exchange payloads, which may differ in size; every rank gets those of all ranks, ordered by rank.

        what: names the exchange in errors. Raises RankLost. Each rank receives size - 1 payloads, each padded to the
        largest.
        """

    def gather_values(self, value: Any, what: str) -> list[Any]:
        """`gather` for values that `pack` accepts. A single rank gets its own value back, not a copy."""

    def share(self, payload: bytes | None, what: str, root: int = 0) -> bytes:
        """Send the payload of rank `root` to every rank; the payloads of others are not read. Raises RankLost."""

    def gather_tensor(self, part: Tensor, out: Tensor, what: str = "gradients") -> None:
        """Write the parts of all ranks to `out`, (size, *part.shape), ordered by rank. Raises RankLost."""

    def check(self) -> None:
        """Raise RankLost if another rank is known to be gone; nothing is sent."""

    def new_stop(self) -> Stop:
        """A `Stop` for a trainer, with which all ranks stop before the same step; all ranks call this in one order."""


class OneRank:
    """The group of a process that trains alone; nothing is sent."""

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
        """Do nothing, because there is no other rank."""

    def new_stop(self) -> Stop:
        return OwnStop()


class OwnStop:
    """The `Stop` of a process that trains alone; a request takes effect at once."""

    def __init__(self) -> None:
        self._requested = False

    def begin(self) -> None:
        """Do nothing; an earlier request stays valid."""

    def end(self) -> None:
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def is_due(self) -> bool:
        return self._requested

    def close(self) -> None:
        """Do nothing."""


def rows_of(rank: int, size: int, num_envs: int) -> slice:
    """The environments of one rank out of `size`, divided evenly; the first ranks may have one more than the last.

    Raises UserError if there are fewer environments than ranks.

    >>> [rows_of(rank, 3, 8) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    >>> rows_of(0, 1, 0)  # a single rank owns all environments
    slice(0, 0, None)
    """
    if num_envs < size > 1:
        raise UserError(
            f"{size} ranks need at least {size} environments, one each, but n_envs is {num_envs}; raise n_envs to "
            f"{size} or more, best to a multiple of {size}, or start at most {num_envs} ranks."
        )
    mine = split(range(num_envs), size)[rank]
    return slice(mine.start, mine.stop)


def num_envs_of_all(ranks: Ranks, own: int) -> int:
    """The number of environments of all ranks together. Raises UserError if they are not divided as by `rows_of`."""
    numbers = ranks.gather_values(own, "the numbers of environments")
    total = sum(numbers)
    divided = [rows_of(rank, ranks.size, total) for rank in range(ranks.size)]
    if numbers != [rows.stop - rows.start for rows in divided]:
        raise UserError(
            f"{total} environments are not divided evenly among {ranks.size} ranks, with any extra ones on the first "
            f"ranks: they have {', '.join(map(str, numbers))}; pass envs[rows_of(rank, size, n_envs)] on each rank."
        )
    return total


Array = np.ndarray
_LENGTH_BYTES = 8  # for the length of the JSON text, which comes first


def pack(value: Any) -> bytes:
    """The bytes of a tree of dicts, lists, tuples, plain values, bytes, arrays and CPU tensors.

    Raises TypeError for other values. Arrays are copied once, which takes 30 us for 1 MB.
    """
    parts: list[bytes | memoryview] = []
    tree = json.dumps(_Packing(parts).tree_of(value)).encode()
    return b"".join([len(tree).to_bytes(_LENGTH_BYTES, "little"), tree, *parts])


def unpack(packed: bytes) -> Any:
    """The value that was packed. Arrays are writable copies."""
    n = int.from_bytes(packed[:_LENGTH_BYTES], "little") + _LENGTH_BYTES
    return _value_of(json.loads(packed[_LENGTH_BYTES:n]), memoryview(packed)[n:])


class _Packing:
    """Converts values to JSON types, and collects the bytes that JSON cannot hold."""

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
    """The first text that is not empty among the texts of all ranks, ordered by rank; "" if all are empty."""
    return next(filter(None, ranks.gather_values(own, what)), "")


def states_put(ranks: Ranks, put: Callable[[], Result], *, first_env: int) -> Result | None:
    """Call `put`, which puts the environments of this rank into states, and return its result.

    first_env: the index of the first environment of this rank. Raises StateNotAvailable on all ranks if an environment
    of any rank cannot be put into its state.
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
    """SHA-256 of the weights, the statistics, and the state of the generator of noise.

    Takes 90 us for a 64x64 network, and 4 ms for a million weights.
    """
    state = policy.state_dict()
    rest = [state["normalizer"], state["value_normalizer"], generator_state(generator)]
    digest = hashlib.sha256(json.dumps(rest).encode())
    for weight in state["network"].values():
        digest.update(weight.cpu().numpy().tobytes())
    return digest.hexdigest()


def check_equal(ranks: Ranks, digests: list[str]) -> None:
    """Raise RanksDiffer if the digests, ordered by rank, are not all equal.

    The most frequent digest counts as right; among equally frequent ones, that of the lowest rank.
    """
    right = max(digests, key=digests.count)
    others = [rank for rank, digest in enumerate(digests) if digest != right]
    if others:
        where = described(ranks.members, others)
        raise RanksDiffer(
            f"The weights or random numbers of {where} differ from those of rank {digests.index(right)}, although they "
            "learned from the same rollouts; start all ranks with the same seed, the same kind of processor and the "
            "same versions, and continue from the last checkpoint."
        )
