"""Spares the process of a command the search for garbage among modules, which are none until it ends."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ml_pipeline.runtime.interrupts import is_command_process


@contextmanager
def keeping_imports() -> Iterator[None]:
    """Within the block, which imports, no garbage is searched for; what is there at its end is never searched again.

    `import torch` searched for 0.3 of its 1.4 s, and Python, as it ended, went through all modules for 0.9 s, now for
    0.3. Does nothing but in a process that began with `exit_at_once_on_signals`: any other one's objects are not ours.
    """
    if not is_command_process():
        yield
        return
    gc.collect()  # what is garbage already is not kept
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
