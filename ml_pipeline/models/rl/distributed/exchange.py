"""What ranks send each other, as bytes: arrays as they are, all else as JSON. Reading it runs no code.

What fails on one rank is raised on all of them, so that they go on alike; a digest of all that they act and learn by
says whether they are still equal.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.state import PickledState
from ml_pipeline.models.rl.distributed.ranks import Ranks, RanksDiffer, described
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runtime.seeding import generator_state

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
    return next(filter(None, (reason.decode() for reason in ranks.gather(own.encode(), what))), "")


def states_put(ranks: Ranks, put: Callable[[], Result], *, first_env: int) -> Result | None:
    """What `put` returns, which puts this rank's environments into states; first_env: the index of the first of them.

    Raises StateNotAvailable where an environment of any rank does not take its state.
    """
    result, failed, cause = None, None, None
    try:
        result = put()
    except StateNotAvailable as error:
        failed, cause = (first_env + error.index, error.reason), error
    for of_rank in ranks.gather(pack(failed), "whether states can be restored"):
        if (found := unpack(of_rank)) is not None:
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
