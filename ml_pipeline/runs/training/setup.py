"""What a run is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymnasium.vector import VectorEnv

from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.monitoring.sink import MetricsSink
from ml_pipeline.runs.ranks.together import Together
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runs.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """checkpoint: the one that it continues. trust_checkpoint: also open what it holds that can
    run code, though no run of this user wrote it."""

    config: TrainConfig
    task: Task
    checkpoint: Path | None = None
    trust_checkpoint: bool = False
    sinks: Sequence[MetricsSink] = ()
    listener: RunListener = field(default_factory=RunListener)
    stop: StopRequest = field(default_factory=StopRequest)
    envs: VectorEnv | None = None
    """Given, and not to be closed."""
    ranks: Together | None = None
    """The group that trains together; of a run in one process None."""
