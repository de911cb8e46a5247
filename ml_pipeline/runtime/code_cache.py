"""Machine code that outlives its process: compiled once, then loaded by every process that needs it.

Compiling a step takes two seconds of a processor, and eight workers on two cores took nine to begin; loading
takes 0.3 s. The files lie where numba keeps its own: beside the source, in NUMBA_CACHE_DIR, or in the user's cache.
"""

import contextlib
import hashlib
import inspect
import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

_UNUSABLE = (OSError, EOFError, pickle.UnpicklingError)


def keep_code(dispatcher: Any, made_of: Sequence[Path]) -> Any:
    """`dispatcher`, from `numba.njit`, that looks for its code on disk before it compiles, and leaves it there.

    made_of: the sources of all that is compiled into it, besides its own. numba itself would compare what the function
    closes over, which has another name in each process. Where nothing can be written or read, it compiles.
    """
    from numba.core.caching import FunctionCache

    function = dispatcher.py_func
    digest = _digest((Path(inspect.getfile(function)), *made_of))

    class KeptBySource(FunctionCache):
        def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
            return signature, codegen.magic_tuple(), digest

        def load_overload(self, signature: Any, *args: Any) -> Any:
            with contextlib.suppress(*_UNUSABLE):
                loaded = super().load_overload(signature, *args)
                # Processes that compile at the same time may overwrite each other's files, and numba does not check.
                return loaded if loaded is not None and loaded.signature.args == tuple(signature) else None

        def save_overload(self, *args: Any) -> None:
            with contextlib.suppress(*_UNUSABLE):
                super().save_overload(*args)

    with contextlib.suppress(RuntimeError):  # numba found no folder
        dispatcher._cache = KeptBySource(function)
    return dispatcher


@cache
def _digest(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
