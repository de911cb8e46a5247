"""Resources that runs need, resources of the machine, and the choice of queued runs that start now.

Runs start in order. A smaller run may overtake a run that does not fit yet, but only if both fit on the machine
together: so overtaking never delays the larger run, and every run starts eventually.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_TRAINER_MB = 500.0
"""Resident memory of a trainer's process on small networks: 430 MB of a CartPole run, most of it torch."""
_WORKER_MB = 60.0
"""Resident memory of a worker process, which does not import torch."""


class Need(NamedTuple):
    """Resources that a run needs, or that are available."""

    runs: float
    cores: float
    memory_mb: float
    envs: float

    def plus(self, other: "Need") -> "Need":
        return Need(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "Need") -> "Need":
        return Need(*(a - b for a, b in zip(self, other, strict=True)))

    def fits(self, room: "Need") -> bool:
        return all(a <= b for a, b in zip(self, room, strict=True))

    def at_most(self, other: "Need") -> "Need":
        """The need, limited to the available total: a run that needs more gets everything when it runs alone."""
        return Need(*(min(a, b) for a, b in zip(self, other, strict=True)))


NOTHING = Need(0, 0, 0, 0)
_NAMES = Need("runs", "cores", "MB of memory", "environments")  # type: ignore[arg-type]
_DIGITS = 6


@dataclass(frozen=True)
class Waiting:
    """A queued or running run. order: (-priority, position); smaller ones start first."""

    id: str
    order: tuple[int, int]
    need: Need


def need_of(settings: Mapping[str, Any]) -> Need:
    """Resources that a run with these flat settings needs.

    "auto" and "dynamic" workers count as one core, because the run adapts to free cores. Batched environments are
    arrays in one process, and count as one environment. A schedule of environments counts with its largest number. Each
    rank has its own workers.

    >>> need_of({"n_envs": 8, "n_workers": 4, "vec_env": "parallel"})
    Need(runs=1, cores=4, memory_mb=740.0, envs=8)
    >>> need_of({"n_envs": 4096, "n_workers": "auto", "vec_env": "batched"})
    Need(runs=1, cores=1, memory_mb=500.0, envs=1)
    >>> need_of({"n_envs": 8, "n_processes": 4, "vec_env": "serial"})
    Need(runs=1, cores=4, memory_mb=2000.0, envs=8)
    """
    n_workers = settings.get("n_workers")
    workers = n_workers if isinstance(n_workers, int) and settings.get("vec_env") == "parallel" else 0
    schedule = settings.get("n_envs_schedule") or {}
    most_envs = max(int(settings.get("n_envs") or 1), *map(int, schedule.values()), 1)
    envs = 1 if settings.get("vec_env") == "batched" else most_envs
    ranks = settings.get("n_processes")
    n = ranks if isinstance(ranks, int) and ranks > 1 else 1
    return Need(1, n * max(1, workers), n * (_TRAINER_MB + _WORKER_MB * workers), envs)


def to_start(queued: Sequence[Waiting], running: Sequence[Waiting], total: Need) -> list[str]:
    """The ids of the queued runs that start now, in order.

    >>> room = Need(math.inf, 4, math.inf, math.inf)
    >>> asked = {"a": 3, "b": 4, "c": 1}  # cores
    >>> queued = [Waiting(id, (0, place), Need(1, cores, 0, 1)) for place, (id, cores) in enumerate(asked.items())]
    >>> to_start(queued, [], room)  # b needs all cores, so c waits behind it
    ['a']
    """
    return [id for id, reason in decide(queued, running, total).items() if reason is None]


def decide(queued: Sequence[Waiting], running: Sequence[Waiting], total: Need) -> dict[str, str | None]:
    """For each queued run, by id and in order, why it waits; None if it starts now.

    >>> room = Need(math.inf, 2, math.inf, math.inf)
    >>> decide([Waiting("b", (0, 1), Need(1, 4, 0, 1))], [Waiting("a", (0, 0), Need(1, 1, 0, 1))], room)
    {'b': 'Waits for 2 of 2 cores; a uses 1.'}
    """
    present = [*running]
    used = _sum(present, total)
    reasons: dict[str, str | None] = {}
    blocked: Waiting | None = None  # the first run that does not fit; runs that overtake it must leave room for it
    for run in sorted(queued, key=lambda each: each.order):
        need = run.need.at_most(total)
        if not used.plus(need).fits(total) and present:
            blocked = blocked or run
            reasons[run.id] = _lacking(need, used, total, present)
            continue
        if blocked is not None:
            overtaking = _sum([each for each in present if each.order > blocked.order], total)
            if not overtaking.plus(need).plus(blocked.need.at_most(total)).fits(total):
                reasons[run.id] = f"Waits behind {blocked.id}, which needs the room."
                continue
        reasons[run.id] = None
        present.append(run)
        used = used.plus(need)
    return reasons


def _lacking(need: Need, used: Need, total: Need, present: Sequence[Waiting]) -> str:
    """Which resource is short, and which runs use it."""
    i = next(i for i in range(len(need)) if used[i] + need[i] > total[i])
    users = f"{present[0].id} uses" if len(present) == 1 else f"{len(present)} runs use"
    if need._fields[i] == "runs":
        return f"Waits for its turn; {users} all {total[i]:g} places."
    return f"Waits for {need[i]:,.{_DIGITS}g} of {total[i]:,.{_DIGITS}g} {_NAMES[i]}; {users} {used[i]:,.{_DIGITS}g}."


def _sum(runs: Sequence[Waiting], total: Need) -> Need:
    used = NOTHING
    for run in runs:
        used = used.plus(run.need.at_most(total))
    return used


def share_of_cores(cores: float, n_fixed: float, n_dynamic: int) -> int:
    """Cores for each run with dynamic workers, if the others use `n_fixed` cores; at least one.

    >>> share_of_cores(8, 2, 3), share_of_cores(2, 0, 4)
    (2, 1)
    """
    return max(1, math.floor((cores - n_fixed) / n_dynamic)) if n_dynamic else 0


_GROUP = Path("/sys/fs/cgroup")
# Files of control groups, versions 2 and 1: limit, usage, and usage by type.
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CACHES = {"inactive_file", "active_file"}


def free_memory_bytes() -> int:
    """Bytes that new processes can use without swapping: the minimum of the machine and of the control group."""
    return min([int(psutil.virtual_memory().available), *_left_in_group(_GROUP)])


def _left_in_group(group: Path) -> list[int]:
    """Free bytes of a control group, with file caches counted as free; empty if it has no limit."""
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
