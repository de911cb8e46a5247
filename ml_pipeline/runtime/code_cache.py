"""A cache of machine code on disk: one process compiles, all others load.

Compiling a step takes 2 s of CPU time, and eight workers on two cores needed 9 s to start; loading takes 0.3 s. The
files are where numba keeps its own: next to the source, in NUMBA_CACHE_DIR, or in the user's cache folder.
"""

import contextlib
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ml_pipeline.runtime.files import alone

_TURN_S = 120.0  # longest wait for another process, which may be suspended; then compile without waiting


def keep_code(dispatcher: Any, made_of: Sequence[Path]) -> Any:
    """Make `dispatcher`, from `numba.njit`, load its code from disk if it can, and save what it compiles.

    If several processes need the same code at the same time, one compiles and the others wait for its files. If the
    cache cannot be read or written, the process compiles without it.
    made_of: the sources of everything compiled into the function, besides its own. numba itself would compare the
    closure, whose contents have different names in each process.
    """
    from numba.core.caching import FunctionCache

    function = dispatcher.py_func
    digest = _digest((Path(inspect.getfile(function)), *made_of))
    compiling = contextlib.ExitStack()  # holds the lock from a cache miss until the code is saved

    class KeptBySource(FunctionCache):
        def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
            return signature, codegen.magic_tuple(), digest

        def load_overload(self, signature: Any, *args: Any) -> Any:
            loaded = self._loaded(signature, *args)
            if loaded is None:
                with contextlib.suppress(OSError):
                    compiling.enter_context(alone(self._lock_file(), timeout_s=_TURN_S))
                    loaded = self._loaded(signature, *args)  # the previous holder of the lock may have saved it
            return loaded

        def save_overload(self, *args: Any) -> None:
            with contextlib.suppress(OSError):
                super().save_overload(*args)

        def _loaded(self, signature: Any, *args: Any) -> Any:
            try:
                loaded = super().load_overload(signature, *args)
            except OSError:
                return None
            except Exception:  # a truncated file, or an index that refers to classes of another version
                with contextlib.suppress(OSError):
                    self.flush()  # otherwise numba reads the index again before it saves
                return None
            # On file systems without locks, processes may overwrite each other's files, and numba does not check.
            return loaded if loaded is not None and loaded.signature.args == tuple(signature) else None

        def _lock_file(self) -> Path:
            self._impl.locator.ensure_cache_path()
            return Path(self.cache_path) / f"{self._impl.filename_base}.lock"

    def compile_in_turn(signature: Any) -> Any:
        with compiling:  # releases the lock, even if compiling fails
            return type(dispatcher).compile(dispatcher, signature)

    with contextlib.suppress(RuntimeError):  # numba found no cache folder
        dispatcher._cache = KeptBySource(function)
        dispatcher.compile = compile_in_turn
    return dispatcher


def can_keep_code() -> bool:
    """Whether numba finds a writable cache folder for this package. Needs numba."""
    from numba.core.caching import FunctionCache

    try:
        FunctionCache(can_keep_code)  # tries to write a file into each candidate folder
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def recorded_compilations() -> Iterator[list[Any]]:
    """A list that collects everything numba compiles within the block, but not code loaded from disk. Needs numba."""
    from numba.core.event import install_recorder

    with install_recorder("numba:compile") as recorder:
        yield recorder.buffer


@cache
def _digest(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
