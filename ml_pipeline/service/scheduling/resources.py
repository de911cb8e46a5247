"""What the runs of a service may use: its limits, what the machine has of them, and the limit that they share."""

import math
from dataclasses import dataclass

from ml_pipeline.config.checks import check_count, check_positive
from ml_pipeline.jobs.budget import Need, free_memory_bytes
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE
from ml_pipeline.service.env_pool import pool_for_runs
from ml_pipeline.service.scheduling.loop import EventLog

_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Runs go on at once as long as all of these hold; the rest waits.

    Raises UserError where a value cannot be used.

    >>> ServiceLimits(max_runs=2).max_runs
    2
    """

    max_runs: int | None = None
    """Most runs at once; none: as many as cores and memory allow."""

    max_concurrent_envs: int | None = None
    """Most environments of all runs at once; none: no limit."""

    cores: float | None = None
    """Cores that runs share: each takes one, or one per worker; none: those that this process may use."""

    memory_mb: float | None = None
    """Memory in MB that runs may take together; none: what is available."""

    stop_grace_s: float = 60.0
    """Seconds from the request to stop a run until it is killed."""

    def __post_init__(self) -> None:
        for name in ("max_runs", "max_concurrent_envs"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("cores", "memory_mb"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_positive("stop_grace_s", self.stop_grace_s)


class Resources:
    """The limits of a service, and what its machine has of them. Close it: that ends the pool."""

    def __init__(self, limits: ServiceLimits, log: EventLog) -> None:
        """Makes the pool. If that fails, the log tells why, and runs share no limit."""
        self._limits = limits
        self._pool = pool_for_runs(limits.max_concurrent_envs, log.tell)

    @property
    def cores(self) -> float:
        """Cores that runs share; at least one."""
        return max(1.0, self._limits.cores or usable_cores())

    def total(self, given_mb: float) -> Need:
        """All there is. given_mb: memory in MB that runs under way were given; it counts whether they use it yet."""
        limits = self._limits
        memory_mb = given_mb + free_memory_bytes() / _MB
        return Need(
            runs=limits.max_runs or math.inf,
            cores=self.cores,
            memory_mb=memory_mb if limits.memory_mb is None else min(memory_mb, limits.memory_mb),
            envs=limits.max_concurrent_envs or math.inf,
        )

    def environment(self) -> dict[str, str]:
        """Variables for the process of a run. It counts its environments in this service's pool, not in another one."""
        return {ENV_POOL_VARIABLE: "" if self._pool is None else self._pool.address}

    def close(self) -> None:
        """May be called twice."""
        if self._pool is not None:
            self._pool.close()
