"""What a run records besides its own files: run.log, and the sinks that its settings name."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import flatten
from ml_pipeline.monitoring.listener import RunEnd, RunListener
from ml_pipeline.monitoring.run_log import LOG_FILE, LoggedListener, RunLog, closing_entry
from ml_pipeline.monitoring.sink import MetricsSink
from ml_pipeline.monitoring.tensorboard import EVENTS_FOLDER, TensorBoardSink, require_tensorboard
from ml_pipeline.monitoring.threaded_sink import ThreadedSink
from ml_pipeline.monitoring.wandb import WandbSink, require_wandb
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.user_code import call_user_code, import_by_name

_WANDB_CLOSE_S = 60.0  # what was not sent yet goes over the network


class Recording:
    """Hears what the run tells; `listener` passes it on. Nothing is written before the run has been accepted."""

    def __init__(self, config: TrainConfig, folder: Path, listener: RunListener) -> None:
        """Raises UserError where a sink cannot be had: its extra is missing, or the user's class fails."""
        self._log = RunLog(folder / LOG_FILE)
        self.listener = LoggedListener(listener, self._log)
        self.sinks = _sinks_of(config, folder, self.listener.say)

    def trained(self, status: Literal["finished", "stopped"]) -> None:
        """Record that training is over; the report of a finished run comes next."""
        self._log.write(f"Training is {'over' if status == 'finished' else 'stopped'} and saved.")

    def end(self, end: RunEnd) -> None:
        """Record how the run ended, and finish the sinks; may take until the limits of those that hang."""
        self._log.write(closing_entry(end))
        for sink in self.sinks:
            sink.ended(end)
        self.close()

    def close(self) -> None:
        """Finish the sinks and the log; may be called twice."""
        for sink in self.sinks:
            sink.close()
        self._log.close()


def _sinks_of(config: TrainConfig, folder: Path, say: Callable[[str], None]) -> list[ThreadedSink]:
    run, settings = config.run, flatten(config)
    sinks = []
    if run.tensorboard or run.tensorboard_dir is not None:
        require_tensorboard()
        events = folder / EVENTS_FOLDER if run.tensorboard_dir is None else run.tensorboard_dir / folder.name
        sinks.append(ThreadedSink("TensorBoard", partial(TensorBoardSink, events, settings), say=say))
    if run.wandb is not None:
        require_wandb()
        open_sink = partial(WandbSink, run.wandb, folder, settings)
        sinks.append(ThreadedSink("wandb", open_sink, say=say, close_timeout_s=_WANDB_CLOSE_S))
    for name in run.sink:
        own = _own_sink(name, folder, settings)
        sinks.append(ThreadedSink(name, partial(_same, own), say=say, opens_unwritten=True))
    return sinks


def _own_sink(name: str, folder: Path, settings: Mapping[str, Any]) -> MetricsSink:
    """The user's class, called with the run folder and the settings. Raises UserError, with the user's line."""
    sink_class = import_by_name(name)
    if not callable(sink_class):
        raise UserError(f"sink {name} must be a class, but is a {type(sink_class).__name__}.")
    sink = call_user_code(name, lambda folder: sink_class(folder, dict(settings)), folder)
    for method in ("write", "close"):
        if not callable(getattr(sink, method, None)):
            raise UserError(f"sink {name} has no method {method}; a sink has write(metrics, episodes) and close().")
    return sink


def _same(sink: MetricsSink) -> MetricsSink:
    return sink
