"""What a `TrainerAgent` trains with: a run in given or own environments, its result, and how fast it was."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.runs.earlier_runs import find_checkpoint, resumed_config
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.recording import RunResult
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import Task, make_envs
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.service.agent.config import LoggingConfig
from ml_pipeline.service.agent.training_log import TrainingLog
from ml_pipeline.service.agent.training_performance import Measured, TimeSink, described, measure, memory_mb


class TrainerCore:
    """Runs trainings one after another. run_result: of the last one; None before it."""

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
        """These are the environments that performance is about. make_one: makes a single one like them."""
        self._envs, self._make_one = envs, make_one
        self._measured, self._spent = None, TimeSink()

    def train(
        self, config: TrainConfig, task: Task, envs: VectorEnv | None = None, *, resume: str | Path | None = None
    ) -> RunResult:
        """One run, to its end or a stop. envs: stay open; None: made for the run, and closed after it.

        resume: a run folder or checkpoint to continue, which keeps its settings but for `total_timesteps`.
        """
        checkpoint = None
        if resume is not None:
            checkpoint = find_checkpoint(str(resume), {})
            assert checkpoint is not None  # only "auto" finds none
            config = _resumed(checkpoint, config)
        log = TrainingLog(self._logger, self._logging.log_interval)
        with ExitStack() as stack:
            if envs is None:
                envs = make_envs(config, task)
                stack.callback(envs.close)
                self.watch(envs, task.train_env_fns(config.run.n_envs)[0])
                stack.callback(self._measure)  # while they are open
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
        """How fast the last training was, and what its environments are worth.

        environment_type: "in-process", "workers", "workers and in-process" or "batched". num_envs, num_workers.
        steps_per_second: environment steps of the training, acting and learning included; None before it.
        env_steps_per_second, single_env_steps_per_second: of the environments, and of one of them alone in this
        process, by random actions for a fifth of a second each, after which they are as they were; None while a
        training is under way, and where there are none. measured_speedup: the first over the second. expected_speedup:
        what the choice of workers expects, over stepping one after another, from a step, a wake-up and the cores that
        are free; 1 without workers, None for batched environments. memory: "process_mb", "children_mb" and
        "available_mb", as of now.
        """
        self._measure()
        figures = described(self._envs, self._measured)
        return {**figures, "steps_per_second": self._spent.rate, "memory": memory_mb()}

    def _measure(self) -> None:
        """Measure the environments once, unless they are in use or closed."""
        if self._measured is None and not self._training and self._envs is not None and not self._envs.closed:
            self._measured = measure(self._envs, self._make_one)


def model_path(result: RunResult) -> Path:
    """The checkpoint to use: the best or, where none was evaluated, the latest."""
    best = result.folder / BEST_CHECKPOINT
    return best if best.is_file() else result.folder / LATEST_CHECKPOINT


def _resumed(checkpoint: Path, config: TrainConfig) -> TrainConfig:
    """The settings to go on with. Raises UserError where these environments are not those of the run."""
    run, trading = config.run, config.trading
    changes: dict[str, Any] = {"n_envs": run.n_envs, "n_workers": run.n_workers}
    if run.env_id is None:
        changes |= {"data": trading.data, "symbols": trading.symbols, "per_symbol": trading.per_symbol}
    if run.total_timesteps is not None:
        changes["total_timesteps"] = run.total_timesteps
    return resumed_config(checkpoint, changes)
