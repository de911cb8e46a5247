"""What a `TrainerAgent` says and how far it is: to Python's logging, or to logs/training.log with the time in UTC."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.sink import EpisodeRecord

LOGGER = "ml_pipeline.service"
"""Where a `TrainerAgent` says what it says, unless it is given a logger or a file."""
_FORMAT = "%(asctime)sZ %(levelname)s %(message)s"


def file_logger(path: Path) -> logging.Logger:
    """A logger of its own that adds lines to `path`, and passes them on to the handlers of ml_pipeline.

    Where nobody listens to ml_pipeline, warnings go to stderr as well, as Python does with a logger without handlers.
    `close_log_file` closes the file; another line opens it again. Raises UserError where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The log {path} cannot be written: {error.strerror}; choose another log_file.") from error
    formatter = logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger = _FileLogger("ml_pipeline.agent", logging.INFO)
    logger.addHandler(handler)
    logger.parent = logging.getLogger("ml_pipeline")
    return logger


def close_log_file(logger: logging.Logger) -> None:
    """Close the file of a `file_logger`; another logger keeps what it has open."""
    if isinstance(logger, _FileLogger):
        for handler in logger.handlers:
            handler.close()


class _FileLogger(logging.Logger):
    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802  # its name in logging
        super().callHandlers(record)
        last = logging.lastResort
        is_heard = self.parent is not None and self.parent.hasHandlers()
        if not is_heard and last is not None and record.levelno >= last.level:
            last.handle(record)


class TrainingLog(RunListener):
    """A listener and a sink of a run: its sentences, and a line of progress every `log_interval` environment steps."""

    def __init__(self, logger: logging.Logger, log_interval: int) -> None:
        self._logger = logger
        self._interval = log_interval
        self._next = log_interval
        self._total = 0

    def started(self, start: RunStart) -> None:
        where = counted(start.n_workers, "worker") if start.n_workers else "this process"
        self._total, self._next = start.total_steps, start.first_step + self._interval
        self._logger.info(
            "Training begins in %s: %d environments in %s, %s steps.",
            start.folder, start.n_envs, where, f"{start.total_steps:,}",
        )  # fmt: skip

    def say(self, sentence: str) -> None:
        self._logger.info("%s", sentence)

    def trained(self) -> None:
        self._logger.info("Training is over.")

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """A line of progress, where the interval has passed."""
        step = int(metrics["time/global_step"])
        if step < self._next and step < self._total:
            return
        self._next = step + self._interval
        mean = metrics["rollout/mean_return_100"]
        shown = "no episode has ended" if math.isnan(mean) else f"mean return of 100 episodes {mean:,.4g}"
        speed = metrics["time/steps_per_second"]
        self._logger.info("Step %s of %s, %s steps/s, %s.", f"{step:,}", f"{self._total:,}", f"{speed:,.0f}", shown)

    def close(self) -> None:
        close_log_file(self._logger)
