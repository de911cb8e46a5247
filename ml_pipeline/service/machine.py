"""How much memory runs may take here: what the machine has left, or the container's share."""

from pathlib import Path

import psutil

_MB = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")
_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def available_memory_mb() -> float:
    """Memory that new processes can take before the machine, or the container, has to swap or to kill."""
    found = [float(psutil.virtual_memory().available)]
    for limit, used in _FILES:
        try:
            found.append(float((_CGROUP / limit).read_text()) - float((_CGROUP / used).read_text()))
        except (OSError, ValueError):  # "max", or no such control group
            continue
    return max(0.0, min(found)) / _MB
