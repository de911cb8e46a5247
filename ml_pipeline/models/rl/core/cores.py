"""How many processors this process may really use: the machine's, its affinity mask's, its container's share."""

import os
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_cores() -> float:
    """Processors' worth of time this process may use; at least a fraction of one, not always whole."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min([float(allowed), *_quotas()])


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
