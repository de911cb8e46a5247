"""What a service may use at once: `ServiceLimits`."""

from dataclasses import dataclass

from ml_pipeline.config.checks import check_count, check_positive


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
