"""The arrays of a batch of environments, and the memory that the trainer shares with its workers.

N environments. observations, final_obs, actions: arrays (N, ...) in the structure of the space, None if the space is
not of fixed size. rewards: float64 (N,). terminated, truncated: bool (N,). current_env: int64 (K,), the index of the
environment that each of K blocks is stepping, -1 between commands.
"""

import ctypes
import math
import mmap
import multiprocessing
import os
import reprlib
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array, iterate

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import ActionsError
from ml_pipeline.models.rl.core.stepping.results import is_fixed_size

_ALIGNMENT = 64  # a cache line, so that two arrays never share one


@dataclass(slots=True)
class Batch:
    """See the module. The arrays are written in place, by the trainer (actions) and by the workers (all others)."""

    layout: "BatchLayout"
    observations: Any
    final_obs: Any
    actions: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    current_env: np.ndarray


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The arrays of a batch; the same layout over the same memory is the same batch, in every process."""

    num_envs: int
    observation_space: Space
    action_space: Space
    autoreset_mode: AutoresetMode
    n_blocks: int = 1  # number of parts of the batch

    def place(self, allocate: Callable[..., np.ndarray] = np.zeros) -> Batch:
        """The batch, with arrays from `allocate(shape, dtype=...)`, called in a fixed order."""
        n = self.num_envs
        has_observations = is_fixed_size(self.observation_space)
        observations = create_empty_array(self.observation_space, n, allocate) if has_observations else None
        keeps_final = has_observations and self.autoreset_mode == AutoresetMode.SAME_STEP
        return Batch(
            layout=self,
            observations=observations,
            final_obs=create_empty_array(self.observation_space, n, allocate) if keeps_final else None,
            actions=create_empty_array(self.action_space, n, allocate) if is_fixed_size(self.action_space) else None,
            rewards=allocate((n,), dtype=np.float64),
            terminated=allocate((n,), dtype=np.bool_),
            truncated=allocate((n,), dtype=np.bool_),
            # Every block writes this at every step. In a shared cache line, each write would wait for other processes.
            current_env=allocate((self.n_blocks, _ALIGNMENT // 8), dtype=np.int64)[:, 0],
        )

    def place_in(self, memory: Any) -> Batch:
        """The batch as views of one block of memory of at least `nbytes()`."""
        return self.place(_Arena(memory))

    def nbytes(self) -> int:
        """The number of bytes that `place_in` needs."""
        arena = _Arena(None)
        self.place(arena)
        return arena.used


class _Arena:
    """Returns consecutive, aligned pieces of one block of memory; without a block, it only counts bytes."""

    def __init__(self, memory: Any | None) -> None:
        self._memory = memory
        self.used = 0

    def __call__(self, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        dtype = np.dtype(dtype)
        start = self.used
        self.used += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None:
            return np.broadcast_to(np.zeros((), dtype), shape)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=start)


def copy_of(arrays: Any) -> Any:
    """The same structure with copied arrays."""
    if isinstance(arrays, np.ndarray):
        return arrays.copy()
    if isinstance(arrays, dict):
        return {key: copy_of(part) for key, part in arrays.items()}
    return tuple(copy_of(part) for part in arrays)


def rows_between(arrays: Any, start: int, stop: int) -> Any:
    """Copies of the rows start..stop, in the same structure."""
    if isinstance(arrays, np.ndarray):
        return arrays[start:stop].copy()
    if isinstance(arrays, dict):
        return {key: rows_between(part, start, stop) for key, part in arrays.items()}
    return tuple(rows_between(part, start, stop) for part in arrays)


def copy_rows(source: Any, target: Any, start: int, stop: int) -> None:
    """Copies the rows start..stop of one structure into another of the same kind."""
    if isinstance(source, np.ndarray):
        target[start:stop] = source[start:stop]
    else:
        for key in source if isinstance(source, dict) else range(len(source)):
            copy_rows(source[key], target[key], start, stop)


def store(arrays: Any, values: Any, name: str) -> None:
    """Copies a batch of actions into `arrays`. Raises ActionsError if shape or dtype do not fit.

    (N,) is accepted for (N, 1).
    """
    if isinstance(arrays, np.ndarray):
        _store_array(arrays, values, name)
        return
    for key, part in arrays.items() if isinstance(arrays, dict) else enumerate(arrays):
        try:
            given = values[key]
        except (TypeError, LookupError):
            kind = "dict" if isinstance(arrays, dict) else "tuple"
            raise ActionsError(
                f"{name} must be a {kind} with an item {key!r}, but got {reprlib.repr(values)}."
            ) from None
        store(part, given, f"{name}[{key!r}]")


def _store_array(array: np.ndarray, values: Any, name: str) -> None:
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise _misfit(array, f"a {type(values).__name__} that is not an array ({error})", name) from error
    try:
        if given.shape != array.shape:
            if given.shape != array.shape[:1] or given.size != array.size:  # copyto would broadcast it
                raise TypeError
            given = given.reshape(array.shape)
        np.copyto(array, given, casting="same_kind")
    except TypeError:
        raise _misfit(array, f"{given.dtype} of shape {given.shape}", name) from None


def _misfit(array: np.ndarray, received: str, name: str) -> ActionsError:
    expected = f"{array.dtype} of shape {array.shape}, the first axis being the environments"
    return ActionsError(f"{name} must be {expected}, but got {received}.")


def split(space: Space, actions: Any, n: int) -> list[Any]:
    """The n actions of a batch, from the batched space. Raises ActionsError if there are not n."""
    try:
        each = list(iterate(space, actions))
    except (TypeError, ValueError, LookupError, CustomSpaceError) as error:
        raise ActionsError(f"A step needs one action per environment, {n}, but got {reprlib.repr(actions)}.") from error
    if len(each) != n:
        raise ActionsError(f"A step needs one action per environment, {n}, but got {len(each)}.")
    return each


def rows_at(arrays: Any, indices: np.ndarray) -> Any:
    """Copies of these rows, in the same structure."""
    if isinstance(arrays, np.ndarray):
        return arrays[indices]
    if isinstance(arrays, dict):
        return {key: rows_at(part, indices) for key, part in arrays.items()}
    return tuple(rows_at(part, indices) for part in arrays)


def put_rows(arrays: Any, indices: np.ndarray, rows: Any) -> None:
    """Writes the rows from `rows_at` back to these indices."""
    if isinstance(arrays, np.ndarray):
        arrays[indices] = rows
    else:
        for key in arrays if isinstance(arrays, dict) else range(len(arrays)):
            put_rows(arrays[key], indices, rows[key])


_NAME = "ml-workers"
_SHARED_MEMORY = "/dev/shm"
_CHUNK = 1 << 20


def allocate(nbytes: int, *, num_envs: int) -> Any:
    """A zeroed buffer of nbytes, which can be passed to processes when they start.

    It has no name, and the system frees it when the last process that maps it ends. All of it is reserved at once:
    multiprocessing's shared arrays are files that grow as they are written, and if the space runs out, SIGBUS kills the
    process. num_envs: for the message. Raises UserError if there is too little space.
    """
    if os.name != "posix":
        return multiprocessing.RawArray(ctypes.c_uint8, nbytes)
    failures = []
    for place in _places():
        try:
            return SharedMemory(_file_without_name(place, nbytes), nbytes)
        except OSError as error:
            failures.append((place, error))
    tried = "; ".join(f"{place or 'memory'}: {error.strerror}{_free_in(place)}" for place, error in failures)
    raise UserError(
        f"{num_envs} environments need {_megabytes(nbytes)} of shared memory for their workers, but there is no room "
        f"for it ({tried}). Use fewer environments or num_workers=0, give a Docker container more memory and a larger "
        "--shm-size, or set TMPDIR to a folder with more room."
    ) from failures[-1][1]


class SharedMemory(mmap.mmap):
    """A mapped open file, which can be passed to processes when they start."""

    _fd: int

    def __new__(cls, fd: int, nbytes: int) -> "SharedMemory":
        """Takes ownership of the open file, also if this fails."""
        try:
            memory = super().__new__(cls, fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        memory._fd = fd
        weakref.finalize(memory, os.close, fd)
        return memory

    def fileno(self) -> int:
        """The open file."""
        return self._fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_again, (reduction.DupFd(self._fd), len(self))


def _map_again(duplicate: Any, nbytes: int) -> SharedMemory:
    return SharedMemory(duplicate.detach(), nbytes)


def _places() -> list[str]:
    """Folders that may have space, best first; "" is anonymous memory."""
    memory = [""] if hasattr(os, "memfd_create") else []  # on Linux; Docker gives /dev/shm 64 MB only
    return [*memory, *([_SHARED_MEMORY] if os.path.isdir(_SHARED_MEMORY) else []), tempfile.gettempdir()]


def _file_without_name(place: str, nbytes: int) -> int:
    """An open file of nbytes zeros, with all space reserved."""
    if place:
        fd, path = tempfile.mkstemp(prefix=f"{_NAME}-", dir=place)
        os.unlink(path)
    else:
        fd = os.memfd_create(_NAME)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
        else:  # macOS
            for start in range(0, nbytes, _CHUNK):
                _write(fd, bytes(min(_CHUNK, nbytes - start)))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _free_in(place: str) -> str:
    return f", {_megabytes(shutil.disk_usage(place).free)} free" if place else ""


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
