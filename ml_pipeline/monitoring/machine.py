"""What this machine uses, whoever uses it: all its cores, its memory, and its GPUs."""

import contextlib
from typing import Any, NamedTuple

import psutil

from ml_pipeline.monitoring.resources import Gpu

_GIB = 2**30


class GpuUse(NamedTuple):
    """percent: of the time in which it computed, lately. None: not told, as of a slice of a GPU."""

    name: str
    percent: float | None
    memory_gib: float | None
    total_gib: float | None


class MachineUse(NamedTuple):
    """cpu_percent: of all cores together, since the look before."""

    cpu_percent: float
    n_cores: int
    memory_gib: float
    total_gib: float
    gpus: tuple[GpuUse, ...]


class Machine:
    """Looks at the machine again and again; a look takes less than a millisecond, with a GPU a few."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # counts from here
        self._gpus = _gpus()

    def look(self) -> MachineUse:
        memory = psutil.virtual_memory()
        return MachineUse(
            psutil.cpu_percent(),
            psutil.cpu_count() or 1,
            (memory.total - memory.available) / _GIB,
            memory.total / _GIB,
            tuple(_use(name, handle) for name, handle in self._gpus),
        )


def _gpus() -> list[tuple[str, Any]]:
    """Name and handle of each; none where NVML or its library is missing."""
    found: list[tuple[str, Any]] = []
    with contextlib.suppress(Exception):  # no library, no right to ask: whatever it is, nobody needs it
        import pynvml

        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            name = pynvml.nvmlDeviceGetName(handle)
            found.append((name.decode() if isinstance(name, bytes) else str(name), handle))
    return found


def _use(name: str, handle: Any) -> GpuUse:
    percent, memory_mib = Gpu(handle).sample()
    total = None
    with contextlib.suppress(Exception):
        import pynvml

        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB
    return GpuUse(name, percent, None if memory_mib is None else memory_mib / 1024, total)
