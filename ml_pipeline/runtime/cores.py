"""How many processors this process may really use: the machine's, its affinity mask's, its container's share.

And how many of them are free, since others may be at work; sentences about such background load.
"""

import os
import time
from pathlib import Path

from ml_pipeline.runtime.rank_variables import processes_here

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_LEAST = 0.5  # of a core, which one more process gets of the fullest machine
_SHORTEST_WATCH_S = 0.05  # the kernel counts idle time in hundredths of a second


def usable_cores() -> float:
    """Processors' worth of time this process may use; at least a fraction of one, not always whole.

    Ranks of one training on this machine share them evenly.
    """
    return min([float(len(_allowed())), *_quotas()]) / processes_here(os.environ)


class IdleWatch:
    """Sees from its making on how busy others keep the processors that this process may use."""

    def __init__(self) -> None:
        self._began = self._now()

    def free_cores(self, *, children_s: float = 0.0) -> float:
        """Processors' worth of time that was idle, or this process's own; all usable ones where that is not known.

        children_s: what other processes that count as its own have used of it since.
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
    """The idle time of all processors that this process may use, since they started; Linux tells."""
    names = {f"cpu{number}" for number in _allowed()}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(int(line[4]) + int(line[5]) for line in lines if line[0] in names) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _quotas() -> list[float]:
    """The CPU quotas of the control groups (version 2 or 1) above this process, in processors."""
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


_BUSY = 0.3  # of a core that others use, from which on it is worth a sentence
_LOOK_S = 0.2


class BackgroundLoad:
    """Measures now and then, while this process and its workers rest, how many cores others keep busy."""

    def __init__(self) -> None:
        self._during: list[float] = []

    def measure(self) -> float:
        """Cores that others use, measured over 0.2 s during which this process sleeps; part of `warning_during`."""
        self._during.append(_others_now())
        return self._during[-1]

    def warning_before(self) -> str | None:
        """Measure before anything else is measured, and say what is to be said; None if the machine is quiet."""
        busy = _others_now()
        if busy < _BUSY:
            return None
        return f"the machine is busy: others use {_of_cores(busy)}{_load()}; the figures may mislead"

    def warning_during(self) -> str | None:
        """What is to be said of the measurements since; None if the machine was quiet."""
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
    """The load average of the last minute, where the system tells."""
    try:
        return f" (load average {os.getloadavg()[0]:.1f})"
    except (OSError, AttributeError):
        return ""
