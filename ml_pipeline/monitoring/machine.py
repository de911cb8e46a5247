"""What this machine uses, whoever uses it: all its cores, its memory, and its GPUs."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from ml_pipeline.monitoring.resources import Gpu

_GIB = 2**30
_LEAST_S = 0.1


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
    """Looks at the machine again and again, from any thread; a look takes less than a millisecond, with a GPU a few."""

    def __init__(self, *, times: Callable[[], "CpuTimes"] | None = None) -> None:
        self._times = times or _cpu_times
        self._lock = threading.Lock()
        self._before = self._times()
        self._percent = 0.0
        self._gpus: list[tuple[str, Any]] | None = None

    def look(self) -> MachineUse:
        memory = psutil.virtual_memory()
        with self._lock:
            if self._gpus is None:
                self._gpus = _gpus()
            now = self._times()
            if now.total_s - self._before.total_s >= _LEAST_S:  # else the counters have hardly moved
                self._percent = 100.0 * (now.busy_s - self._before.busy_s) / (now.total_s - self._before.total_s)
                self._before = now
            return MachineUse(
                min(max(self._percent, 0.0), 100.0),
                psutil.cpu_count() or 1,
                (memory.total - memory.available) / _GIB,
                memory.total / _GIB,
                tuple(_use(name, handle) for name, handle in self._gpus),
            )


class CpuTimes(NamedTuple):
    """Seconds of all cores together."""

    busy_s: float
    total_s: float


def _cpu_times() -> CpuTimes:
    # psutil's own percentage counts from the last look of the same thread: in a server each look is another one's.
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # which user and nice hold
    return CpuTimes(total - times.idle - getattr(times, "iowait", 0.0), total)


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
