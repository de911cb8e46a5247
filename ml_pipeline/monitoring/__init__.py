"""Sinks that receive the metrics of a training, and the types that a custom sink uses."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.monitoring.listener import RunEnd as RunEnd
    from ml_pipeline.monitoring.progress import Progress as Progress
    from ml_pipeline.monitoring.sinks import EpisodeRecord as EpisodeRecord
    from ml_pipeline.monitoring.sinks import MetricsFile as MetricsFile
    from ml_pipeline.monitoring.sinks import MetricsSink as MetricsSink
    from ml_pipeline.monitoring.sinks import MonitorCsv as MonitorCsv
    from ml_pipeline.monitoring.sinks import Sinks as Sinks

__getattr__, __dir__ = lazy_names(__name__, __file__)
