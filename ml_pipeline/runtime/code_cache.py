"""Machine code that outlives its process: compiled once, then loaded by every process that needs it.

Compiling a step takes two seconds of a processor, and eight workers on two cores took nine to begin; loading
takes 0.3 s. The files lie where numba keeps its own: beside the source, in NUMBA_CACHE_DIR, or in the user's cache.
"""

import contextlib
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ml_pipeline.runtime.files import alone

_TURN_S = 120.0  # after which a process no longer waits for another, which may be suspended, and compiles


def keep_code(dispatcher: Any, made_of: Sequence[Path]) -> Any:
    """`dispatcher`, from `numba.njit`, that looks for its code on disk before it compiles, and leaves it there.

    Of processes that need the same code at the same time, one compiles and the others wait for its files.
    made_of: the sources of all that is compiled into it, besides its own. numba itself would compare what the function
    closes over, which has another name in each process. Where nothing can be written or read, it compiles.
    """
    from numba.core.caching import FunctionCache

    function = dispatcher.py_func
    digest = _digest((Path(inspect.getfile(function)), *made_of))
    compiling = contextlib.ExitStack()  # this process's turn, from not finding the code on disk to leaving it there

    class KeptBySource(FunctionCache):
        def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
            return signature, codegen.magic_tuple(), digest

        def load_overload(self, signature: Any, *args: Any) -> Any:
            loaded = self._loaded(signature, *args)
            if loaded is None:
                with contextlib.suppress(OSError):
                    compiling.enter_context(alone(self._lock_file(), timeout_s=_TURN_S))
                    loaded = self._loaded(signature, *args)  # from whoever had the turn before
            return loaded

        def save_overload(self, *args: Any) -> None:
            with contextlib.suppress(OSError):
                super().save_overload(*args)

        def _loaded(self, signature: Any, *args: Any) -> Any:
            try:
                loaded = super().load_overload(signature, *args)
            except OSError:
                return None
            except Exception:  # a file that was cut short, or an index that names classes of another version
                with contextlib.suppress(OSError):
                    self.flush()  # numba would read it again before it saves
                return None
            # Where there are no locks, processes may overwrite each other's files, and numba does not check.
            return loaded if loaded is not None and loaded.signature.args == tuple(signature) else None

        def _lock_file(self) -> Path:
            self._impl.locator.ensure_cache_path()
            return Path(self.cache_path) / f"{self._impl.filename_base}.lock"

    def compile_in_turn(signature: Any) -> Any:
        with compiling:  # which ends the turn, also where compiling fails
            return type(dispatcher).compile(dispatcher, signature)

    with contextlib.suppress(RuntimeError):  # numba found no folder
        dispatcher._cache = KeptBySource(function)
        dispatcher.compile = compile_in_turn
    return dispatcher


def can_keep_code() -> bool:
    """Whether numba finds a folder for the code of this package that can be written to. Needs numba."""
    from numba.core.caching import FunctionCache

    try:
        FunctionCache(can_keep_code)  # it tries each folder, with a file
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def recorded_compilations() -> Iterator[list[Any]]:
    """A list to which everything is added that numba compiles within the block; code from disk is not. Needs numba."""
    from numba.core.event import install_recorder

    with install_recorder("numba:compile") as recorder:
        yield recorder.buffer


@cache
def _digest(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
