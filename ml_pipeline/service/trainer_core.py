"""The core of a `TrainerAgent`: one training run, its result, its log, and its throughput."""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.jobs.budget import free_memory_bytes
from ml_pipeline.models.rl.core.arguments import expected_gain
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.sinks import EpisodeRecord
from ml_pipeline.runs.earlier_runs import find_checkpoint, resumed_config
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.recording import RunResult
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import Task, make_envs
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.service.agent_config import LoggingConfig
from ml_pipeline.trading.envs.batched import BatchedTradingEnv


class TrainerCore:
    """Runs trainings one after another. run_result: of the last run; None before it."""

    def __init__(self, logging_config: LoggingConfig, logger: logging.Logger) -> None:
        self._logging = logging_config
        self._logger = logger
        self._spent = TimeSink()
        self._measured: Measured | None = None
        self._envs: VectorEnv | None = None
        self._make_one: EnvFactory | None = None
        self._training = False
        self.run_result: RunResult | None = None

    def watch(self, envs: VectorEnv | None, make_one: EnvFactory | None) -> None:
        """Set the environments whose throughput is measured. make_one: makes a single environment of the same kind."""
        self._envs, self._make_one = envs, make_one
        self._measured, self._spent = None, TimeSink()

    def train(
        self, config: TrainConfig, task: Task, envs: VectorEnv | None = None, *, resume: str | Path | None = None
    ) -> RunResult:
        """Train one run to its end or a stop. envs: stay open; None: made for the run and closed after it.

        resume: a run folder or checkpoint to continue; it keeps its settings, except `total_timesteps`.
        """
        checkpoint = None
        if resume is not None:
            checkpoint = find_checkpoint(str(resume), {})
            assert checkpoint is not None  # only "auto" may find none
            config = _resumed(checkpoint, config)
        log = TrainingLog(self._logger, self._logging.log_interval)
        with ExitStack() as stack:
            if envs is None:
                envs = make_envs(config, task)
                stack.callback(envs.close)
                self.watch(envs, task.train_env_fns(config.run.n_envs)[0])
                stack.callback(self._measure)  # before they are closed
            self._spent = TimeSink()
            stack.callback(log.close)
            run = Run(config, task, checkpoint=checkpoint, sinks=[self._spent, log], listener=log, envs=envs)
            self._training = True
            try:
                return run.train()
            finally:
                self._training = False
                self.run_result = run.result

    def get_training_performance_info(self) -> dict[str, Any]:
        """Throughput of the last training and of its environments.

        environment_type: "in-process", "workers", "workers and in-process" or "batched". num_envs, num_workers.
        steps_per_second: environment steps of the training, including acting and learning; None before a training.
        env_steps_per_second, single_env_steps_per_second: of the environments, and of a single one in this process,
        with random actions for 0.2 s each; their state is restored afterwards. None during a training and without
        environments. measured_speedup: the first divided by the second. expected_speedup: the estimate by which the
        number of workers was chosen, compared with stepping in this process; 1 without workers, None for batched
        environments. memory: current "process_mb", "children_mb" and "available_mb".
        """
        self._measure()
        figures = described(self._envs, self._measured)
        return {**figures, "steps_per_second": self._spent.rate, "memory": memory_mb()}

    def _measure(self) -> None:
        """Measure the environments once, unless they are in use or closed."""
        if self._measured is None and not self._training and self._envs is not None and not self._envs.closed:
            self._measured = measure(self._envs, self._make_one)


def model_path(result: RunResult) -> Path:
    """The checkpoint to use: the best or, if there was no evaluation, the latest."""
    best = result.folder / BEST_CHECKPOINT
    return best if best.is_file() else result.folder / LATEST_CHECKPOINT


def _resumed(checkpoint: Path, config: TrainConfig) -> TrainConfig:
    """The settings of the resumed run. Raises UserError if these environments differ from those of the run."""
    run, trading = config.run, config.trading
    changes: dict[str, Any] = {"n_envs": run.n_envs, "n_workers": run.n_workers}
    if run.env_id is None:
        changes |= {"data": trading.data, "symbols": trading.symbols, "per_symbol": trading.per_symbol}
    if run.total_timesteps is not None:
        changes["total_timesteps"] = run.total_timesteps
    return resumed_config(checkpoint, changes)


LOGGER = "ml_pipeline.service"
"""Name of a `TrainerAgent`'s logger, unless it has a log file or gets a logger."""
_FORMAT = "%(asctime)sZ %(levelname)s %(message)s"


def file_logger(path: Path) -> logging.Logger:
    """A new logger that appends lines to `path`, and passes them on to the handlers of the logger ml_pipeline.

    If ml_pipeline has no handlers, warnings also go to stderr, as usual in Python. `close_log_file` closes the file;
    the next line opens it again. Raises UserError if the file is not writable.
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
    """Close the file of a `file_logger`. Does nothing to other loggers."""
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
    """Listener and sink of a run: logs its messages, and a progress line every `log_interval` environment steps."""

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
        """Log a progress line if the interval has passed."""
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


_MB = 1e6
_ROUNDS, _ROUND_S = 5, 0.04
"""The best round counts: other processes can only make a round slower."""
_PARTS = ("acting", "stepping", "waiting", "exchanging", "learning")


class TimeSink:
    """Sums the steps of a training and the seconds that they took."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._seconds = 0.0

    @property
    def rate(self) -> float | None:
        """Environment steps per second; None before the first iteration."""
        return self._steps / self._seconds if self._seconds else None

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one iteration."""
        seconds = sum(metrics.get(f"time/{part}_s", 0.0) for part in _PARTS)
        self._seconds += seconds
        self._steps += metrics["time/steps_per_second"] * seconds

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class Measured:
    """Environment steps per second of a vector environment, and of a single one; None if unknown.

    expected_speedup: the estimate by which the number of workers was chosen; None if unknown.
    """

    rate: float | None
    single_rate: float | None
    expected_speedup: float | None


def measure(envs: VectorEnv, make_one: EnvFactory | None) -> Measured:
    """Measure the environments and a single one with random actions, and restore their states.

    If their states cannot be saved, they need a reset afterwards, which every training does.
    """
    with _unmonitored(envs):
        return _measured(envs, make_one)


def described(envs: VectorEnv | None, measured: Measured | None) -> dict[str, Any]:
    """The entries of `TrainerCore.get_training_performance_info` about environments; None if there are none."""
    rate, single_rate = (measured.rate, measured.single_rate) if measured else (None, None)
    return {
        "environment_type": None if envs is None else environment_type(envs),
        "num_envs": None if envs is None else envs.num_envs,
        "num_workers": None if envs is None else getattr(envs, "num_workers", 0),
        "env_steps_per_second": rate,
        "single_env_steps_per_second": single_rate,
        "measured_speedup": rate / single_rate if rate and single_rate else None,
        "expected_speedup": measured.expected_speedup if measured else None,
    }


def environment_type(envs: VectorEnv) -> str:
    """The type of a vector environment in words; the name of its class if it is not ours."""
    if isinstance(envs, ParallelEnv):
        kinds = ["workers"] if envs.num_workers else []
        return " and ".join([*kinds, *(["in-process"] if envs.steps_here else [])])
    return "batched" if isinstance(envs, BatchedTradingEnv) else type(envs).__name__


def memory_mb() -> dict[str, float]:
    """Memory in MB (10^6 bytes): resident memory of this process and of its children, and available memory.

    Shared pages count once per process.
    """
    this = psutil.Process()
    children = 0
    for child in this.children(recursive=True):
        try:
            children += child.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return {
        "process_mb": this.memory_info().rss / _MB,
        "children_mb": children / _MB,
        "available_mb": free_memory_bytes() / _MB,
    }


@contextmanager
def _unmonitored(envs: VectorEnv) -> Iterator[None]:
    """Write no episode statistics within the block."""
    before = getattr(envs, "is_monitored", None)
    if before is not None:
        envs.is_monitored = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before is not None:
            envs.is_monitored = before  # type: ignore[attr-defined]


def _measured(envs: VectorEnv, make_one: EnvFactory | None) -> Measured:
    try:
        states = envs.get_states()  # type: ignore[attr-defined]
    except (AttributeError, StateNotAvailable):
        states = None
    if make_one is None:
        rate, single_rate, expected = _best(_rate(envs) for _ in range(_ROUNDS)), None, None
    else:
        with closing(SerialEnv([make_one])) as single:
            rounds = [[_rate(vector) for vector in (envs, single)] for _ in range(_ROUNDS)]  # under the same load
        rate, single_rate = (_best(rates) for rates in zip(*rounds, strict=True))
        expected = None
        if isinstance(envs, ParallelEnv):
            with closing(make_one()) as env:
                expected = expected_gain(env, envs.num_envs, Division(envs.num_workers, envs.steps_here))
    if states is not None:
        envs.set_states(states)  # type: ignore[attr-defined]
    return Measured(rate, single_rate, expected)


def _best(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return max(known) if known else None


def _rate(envs: VectorEnv) -> float | None:
    """Environment steps per second with random actions, including resets; None if the environments refuse them."""
    try:
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(16)]
        envs.reset(seed=0)
        envs.step(actions[0])
        steps, began = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - began) < _ROUND_S:
            envs.step(actions[steps % len(actions)])
            steps += 1
    except Exception:  # random actions may be invalid
        return None
    return steps * envs.num_envs / elapsed_s if steps else None
