"""How much memory more processes may use: what the machine has free, within the limit of a container."""

from pathlib import Path

import psutil

_GROUP = Path("/sys/fs/cgroup")
# Of control groups of version 2 and version 1: the limit, what is used, and its parts by name.
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CACHES = {"inactive_file", "active_file"}


def free_memory_bytes() -> int:
    """Bytes that new processes can take without swapping; the least of the machine's and the control group's."""
    return min([int(psutil.virtual_memory().available), *_left_in_group(_GROUP)])


def _left_in_group(group: Path) -> list[int]:
    """What a control group leaves, file caches counted as free; nothing where it has no limit."""
    left = []
    for limit, used, parts in _FILES:
        try:
            most = int((group / limit).read_text())
            lines = [line.split() for line in (group / parts).read_text().splitlines()]
            cached = sum(int(value) for name, value in lines if name in _CACHES)
            left.append(max(0, most - int((group / used).read_text()) + cached))
        except (OSError, ValueError):  # "max", or no such control group
            continue
    return left
