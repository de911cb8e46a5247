"""The settings that commands share which train several agents one after another."""

from dataclasses import dataclass

from ml_pipeline.config.checks import check_count


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How one agent is trained.

    Raises UserError if a value is out of range.
    """

    total_timesteps: int = 100_000
    """Environment steps of each training."""
    seed: int = 0
    """Seed of all random numbers, the same in each training."""

    def __post_init__(self) -> None:
        check_count("total_timesteps", self.total_timesteps)
        check_count("seed", self.seed, minimum=0)
