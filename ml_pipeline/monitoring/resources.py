"""CPU, memory and GPU usage of a run, and of the whole machine."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import psutil

_INTERVAL_S = 1.0
# Listing all processes of a machine takes milliseconds, sampling a known one 20 µs.
_DISCOVERY_INTERVAL_S = 10.0
_MIB = 2**20


class Usage(NamedTuple):
    """One sample. cpu_percent: since the previous sample, 100 per busy core. rss_mb: of all processes; shared pages
    count once per process. gpu_percent, gpu_memory_mb: of the whole GPU; None without a GPU."""

    cpu_percent: float | None
    rss_mb: float
    gpu_percent: float | None = None
    gpu_memory_mb: float | None = None


class Resources:
    """A trainer hook that samples this process, its children and its workers once per second.

    A call after an iteration returns the means over the iteration or, if it was shorter than a second, the latest
    sample, under the names in metrics.jsonl. A call takes microseconds, a sample less than 0.5 ms of its thread.
    """

    def __init__(
        self,
        *,
        worker_pids: Callable[[], Iterable[int]] = tuple,
        gpu: "Gpu | None" = None,
        threaded: bool = True,
        interval_s: float = _INTERVAL_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """worker_pids: workers, including those that are not descendants of this process. gpu: the training GPU.
        threaded: sample in a thread, from the first call on; False samples within the calls, so that forked workers do
        not copy a locked lock.
        """
        self._processes = _Processes(clock)
        self._worker_pids = worker_pids
        self._gpu = gpu
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="resources", daemon=True) if threaded else None
        self._since_call: list[Usage] = []
        self._latest: Usage | None = None
        self._sampled_s = clock()
        self._processes.sample()  # CPU time counts from here

    def __call__(self, trainer: object = None, statistics: object = None) -> Mapping[str, float]:
        """The figures of this iteration."""
        self._processes.workers = tuple(self._worker_pids())  # read here: the training thread changes them
        if self._thread is None:
            if self._latest is None or self._clock() - self._sampled_s >= self._interval_s:
                self._sample()
        elif self._latest is None:
            self._sample()
            self._thread.start()
        with self._lock:
            usages, self._since_call = self._since_call or ([] if self._latest is None else [self._latest]), []
        return _means(usages)

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None

    def _work(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        self._sampled_s = self._clock()
        cpu_percent, rss_mb = self._processes.sample()
        percent, memory_mb = self._gpu.sample() if self._gpu is not None else (None, None)
        with self._lock:
            self._latest = Usage(cpu_percent, rss_mb, percent, memory_mb)
            self._since_call.append(self._latest)


class _Processes:
    """This process, its descendants, and `workers`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.workers: tuple[int, ...] = ()
        self._clock = clock
        self._known: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._sampled_s = self._discovered_s = -float("inf")
        self._owner = os.getpid()

    def sample(self) -> tuple[float | None, float]:
        """(CPU percent since the last sample, None at first; memory in MiB)."""
        self._discover()
        now_s, rss, cpu_s = self._clock(), 0, {}
        for pid, process in list(self._known.items()):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                del self._known[pid]
                continue
            cpu_s[pid] = times.user + times.system
            rss += memory.rss
        # A process that started since the last sample counts from its own first sample.
        used_s = sum(now - self._cpu_s[pid] for pid, now in cpu_s.items() if pid in self._cpu_s)
        elapsed_s = now_s - self._sampled_s
        percent = 100.0 * used_s / elapsed_s if self._cpu_s and 0 < elapsed_s < float("inf") else None
        self._cpu_s, self._sampled_s = cpu_s, now_s
        return percent, rss / _MIB

    def _discover(self) -> None:
        now_s = self._clock()
        pids = set(self.workers)
        if now_s - self._discovered_s >= _DISCOVERY_INTERVAL_S:
            self._discovered_s = now_s
            found = self._known.get(self._owner) or psutil.Process(self._owner)
            self._known.setdefault(self._owner, found)
            pids.update(child.pid for child in found.children(recursive=True))
        for pid in pids - self._known.keys():
            try:
                self._known[pid] = psutil.Process(pid)
            except psutil.Error:
                continue


class Gpu:
    """One GPU, by its NVML handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @classmethod
    def of(cls, device: str) -> "Gpu | None":
        """The GPU of a torch device such as "cuda:0"; None for other devices, and if NVML is not available."""
        if not device.startswith("cuda"):
            return None
        try:
            import pynvml
            import torch

            pynvml.nvmlInit()
            # torch and NVML number GPUs differently, and only torch respects CUDA_VISIBLE_DEVICES.
            uuid = torch.cuda.get_device_properties(torch.device(device)).uuid
            return cls(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        except Exception:  # no library, no permission, a MIG slice: training does not need it
            return None

    def sample(self) -> tuple[float | None, float | None]:
        """(recent utilization in percent, used memory in MiB), both by all processes."""
        import pynvml

        return (
            _asked(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)),
            _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used / _MIB),
        )


def _asked(question: Callable[[], float]) -> float | None:
    """The answer; None if the GPU has none: a MIG slice reports no utilization."""
    try:
        return question()
    except Exception:
        return None


def _means(usages: list[Usage]) -> dict[str, float]:
    """Means by the names in metrics.jsonl, without unknown figures."""
    figures = {}
    for name in Usage._fields:
        known = [value for usage in usages if (value := getattr(usage, name)) is not None]
        if known:
            figures[f"system/{name}"] = sum(known) / len(known)
    return figures


_GIB = 2**30
_LEAST_S = 0.1


class GpuUse(NamedTuple):
    """percent: recent utilization. None: unknown, as for a MIG slice."""

    name: str
    percent: float | None
    memory_gib: float | None
    total_gib: float | None


class MachineUse(NamedTuple):
    """cpu_percent: of all cores together, since the previous call."""

    cpu_percent: float
    n_cores: int
    memory_gib: float
    total_gib: float
    gpus: tuple[GpuUse, ...]


class Machine:
    """Samples the usage of the machine, from any thread; a sample takes less than 1 ms, with a GPU a few ms."""

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
            if now.total_s - self._before.total_s >= _LEAST_S:  # otherwise the counters have hardly changed
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
    """Seconds, summed over all cores."""

    busy_s: float
    total_s: float


def _cpu_times() -> CpuTimes:
    # psutil's own percentage counts from the last call in the same thread, but a server calls from different threads.
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # user and nice include them
    return CpuTimes(total - times.idle - getattr(times, "iowait", 0.0), total)


def _gpus() -> list[tuple[str, Any]]:
    """Name and handle of each GPU; empty if NVML is not available."""
    found: list[tuple[str, Any]] = []
    with contextlib.suppress(Exception):  # no library, or no permission
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
