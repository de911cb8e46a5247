"""Who holds how many environments and workers of a pool, and who waits for how many: bookkeeping alone."""

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ml_pipeline.config.errors import UserError


class LeaseRefused(UserError):
    """A pool does not lend what was asked for; says why."""


@dataclass(eq=False, slots=True)
class Lease:
    """Workers that somebody wants or holds.

    batch: whose environments these are. division: a number of the workers that divide them; those of another division
    take the environments over, and for a moment both have them. Each environment then counts once, and of the workers
    the larger number. blocks: (first, stop) of each worker's environments. deadline: when waiting ends. out: the blocks
    of those workers that are lent, by worker.
    """

    holder: str
    batch: str
    blocks: Sequence[tuple[int, int]]
    deadline: float
    kind: str = ""
    division: int = 0
    out: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def n_envs(self) -> int:
        """How many environments were asked for."""
        return sum(stop - first for first, stop in self.blocks)


class LeaseBook:
    """Lends at most `max_envs` environments and `max_workers` workers at once, in the order of asking."""

    def __init__(self, max_envs: int, max_workers: int) -> None:
        self.max_envs, self.max_workers = max_envs, max_workers
        self.waiting: deque[Lease] = deque()
        self.held: list[Lease] = []

    def ask(self, lease: Lease) -> None:
        """Queues a wish. Raises LeaseRefused for one that could never be met."""
        if lease.n_envs > self.max_envs:
            raise LeaseRefused(
                f"{lease.n_envs} environments do not fit into a pool of max_concurrent_envs={self.max_envs}; use "
                "fewer, or raise max_concurrent_envs."
            )
        if len(lease.blocks) > self.max_workers:
            raise LeaseRefused(
                f"{len(lease.blocks)} workers do not fit into a pool of max_workers={self.max_workers}; use fewer, or "
                "raise max_workers."
            )
        self.waiting.append(lease)

    def first_that_fits(self) -> Lease | None:
        """Who is next, if there is room for them: nobody is overtaken."""
        if not self.waiting:
            return None
        lease = self.waiting[0]
        then = [*self.held, _granted(lease)]
        return lease if _n_envs(then) <= self.max_envs and _n_workers(then) <= self.max_workers else None

    def grant(self, lease: Lease, workers: Sequence[int]) -> None:
        """Lends these workers, one per block, to the next in order."""
        assert self.waiting[0] is lease
        self.waiting.popleft()
        lease.out.update(zip(workers, lease.blocks, strict=True))
        self.held.append(lease)

    def take_back(self, worker: int) -> None:
        """Notes that a worker has no environments any more."""
        for lease in self.held:
            lease.out.pop(worker, None)
        self.held = [lease for lease in self.held if lease.out]

    def withdraw(self, lease: Lease) -> None:
        """Drops a wish, if it still waits."""
        if lease in self.waiting:
            self.waiting.remove(lease)

    def overdue(self, now: float) -> list[Lease]:
        """Those who have waited for too long; they wait no more."""
        late = [lease for lease in self.waiting if lease.deadline <= now]
        for lease in late:
            self.waiting.remove(lease)
        return late

    @property
    def n_envs(self) -> int:
        """How many environments are out."""
        return _n_envs(self.held)

    @property
    def n_lent(self) -> int:
        """How many workers are lent."""
        return sum(len(lease.out) for lease in self.held)

    def n_taking_over(self, lease: Lease | None = None) -> int:
        """How many workers are lent beyond those that count, or would be with `lease`: what they step moves."""
        leases = self.held if lease is None else [*self.held, _granted(lease)]
        return sum(len(each.out) for each in leases) - _n_workers(leases)

    def holders(self) -> list[tuple[str, int, int]]:
        """How many environments and workers each holder has."""
        by_holder: dict[str, list[Lease]] = {}
        for held in self.held:
            by_holder.setdefault(held.holder, []).append(held)
        return [(who, _n_envs(leases), sum(len(lease.out) for lease in leases)) for who, leases in by_holder.items()]

    def refusal(self, lease: Lease) -> str:
        """Why a wish was not met in time, and who holds what."""
        counts = [f"{holder} holds {n_envs}" for holder, n_envs, _ in self.holders()]
        ahead = "" if counts else " Others were asked for before."
        return (
            f"There is no room for {lease.n_envs} environments in {len(lease.blocks)} workers within the time: of "
            f"max_concurrent_envs={self.max_envs}, {self.n_envs} are lent, and of max_workers={self.max_workers}, "
            f"{self.n_lent}{''.join(f'; {count}' for count in counts)}.{ahead}"
        )


def _granted(lease: Lease) -> Lease:
    """The same as if it were granted."""
    return replace(lease, out=dict(zip(itertools.count(-1, -1), lease.blocks, strict=False)))


def _n_envs(leases: Sequence[Lease]) -> int:
    """Environments out: each one once, however many workers have it."""
    return len({(lease.batch, index) for lease in leases for block in lease.out.values() for index in range(*block)})


def _n_workers(leases: Sequence[Lease]) -> int:
    """Workers out: of a batch that moves to other workers, the larger number of the two."""
    batches: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for lease in leases:
        batches[lease.batch][lease.division] += len(lease.out)
    return sum(max(by_division.values()) for by_division in batches.values())
