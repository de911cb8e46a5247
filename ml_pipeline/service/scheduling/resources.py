"""What there is for the runs of a service: cores, memory, environments, and the limit that they share."""

import math

from ml_pipeline.jobs.budget import Need, free_memory_bytes
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE
from ml_pipeline.service.env_pool import pool_for_runs
from ml_pipeline.service.limits import ServiceLimits
from ml_pipeline.service.scheduling.event_log import EventLog

_MB = 1e6


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
