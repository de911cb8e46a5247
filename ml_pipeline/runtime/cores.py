"""How many cores this process may use (by affinity mask and container quota), and how many of them are idle.

Also builds the warnings about background load.
"""

import os
import time
from pathlib import Path

from ml_pipeline.runtime.rank_variables import processes_here

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_LEAST = 0.5  # cores: the share that one more process gets even on a fully loaded machine
_SHORTEST_WATCH_S = 0.05  # the kernel counts idle time in units of 10 ms


def usable_cores() -> float:
    """The number of cores that this process may use; it can be a fraction.

    Ranks of the same training on this machine share the cores evenly.
    """
    return min([float(len(_allowed())), *_quotas()]) / processes_here(os.environ)


class IdleWatch:
    """Measures, from its creation on, how many of this process's cores other processes use."""

    def __init__(self) -> None:
        self._began = self._now()

    def free_cores(self, *, children_s: float = 0.0) -> float:
        """The number of cores that were idle or used by this process itself; all usable cores if that is unknown.

        children_s: CPU time since creation of other processes that count as this one, such as its workers.
        """
        (wall_s, own_s, idle_s), (end_s, own_end_s, idle_end_s) = self._began, self._now()
        if idle_s is None or idle_end_s is None or end_s - wall_s < _SHORTEST_WATCH_S:
            return usable_cores()
        free = (idle_end_s - idle_s + own_end_s - own_s + children_s) / (end_s - wall_s)
        return min(usable_cores(), max(_LEAST, free))

    @staticmethod
    def _now() -> tuple[float, float, float | None]:
        return time.perf_counter(), time.process_time(), _idle_s()


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _idle_s() -> float | None:
    """The total idle time since boot of the cores that this process may use; None except on Linux."""
    names = {f"cpu{number}" for number in _allowed()}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(int(line[4]) + int(line[5]) for line in lines if line[0] in names) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _quotas() -> list[float]:
    """The CPU quotas, in cores, of this process's control groups (version 2 or 1) and their parents."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = _CGROUP_ROOT / "cpu" if controllers else _CGROUP_ROOT
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            found += [quota for quota in (_quota_of(folder),) if quota is not None]
            if folder == base:
                break
    return found


def _quota_of(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return None


_BUSY = 0.3  # cores used by others; less is not worth a warning
_LOOK_S = 0.2


class BackgroundLoad:
    """Measures how many cores other processes use, at moments when this process and its workers are idle."""

    def __init__(self) -> None:
        self._during: list[float] = []

    def measure(self) -> float:
        """The number of cores that others use, measured while this process sleeps for 0.2 s; see `warning_during`."""
        self._during.append(_others_now())
        return self._during[-1]

    def warning_before(self) -> str | None:
        """Measure the load before a benchmark; a warning, or None if the machine is quiet."""
        busy = _others_now()
        if busy < _BUSY:
            return None
        return f"the machine is busy: others use {_of_cores(busy)}{_load()}; the figures may mislead"

    def warning_during(self) -> str | None:
        """A warning about the load that `measure` saw during the benchmark; None if the machine was quiet."""
        busy = max(self._during, default=0.0)
        if busy < _BUSY:
            return None
        return f"the machine was busy: others used up to {_of_cores(busy)}{_load()}; measure again when it is quiet"


def _others_now() -> float:
    watch = IdleWatch()
    time.sleep(_LOOK_S)
    return usable_cores() - watch.free_cores()


def _of_cores(busy: float) -> str:
    return f"{busy:.1f} of {usable_cores():g} cores"


def _load() -> str:
    """The load average of the last minute in parentheses; empty if the system does not report it."""
    try:
        return f" (load average {os.getloadavg()[0]:.1f})"
    except (OSError, AttributeError):
        return ""
