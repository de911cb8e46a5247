"""How much memory more processes may use: what the machine has free, within the limit of a container."""

from pathlib import Path

import psutil

_GROUP = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Bytes that new processes can take without swapping; the least of the machine's and the control group's."""
    return min([int(psutil.virtual_memory().available), *_left_in_group(_GROUP)])


def _left_in_group(group: Path) -> list[int]:
    """What a control group (version 2) leaves, file caches counted as free; nothing where it has no limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return []
        used = int((group / "memory.current").read_text())
        lines = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
        cached = sum(int(value) for name, value in lines if name in {"inactive_file", "active_file"})
        return [max(0, int(limit) - used + cached)]
    except (OSError, ValueError):
        return []
