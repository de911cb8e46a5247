"""A training run from start to end: puts a task, environments, a policy, a trainer and the run folder together."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.models.rl.algorithms.early_stopping import StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer import Every, Statistics, Trainer
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.policies.device_choice import choose_device
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
from ml_pipeline.monitoring.console import banner
from ml_pipeline.monitoring.metrics_file import MetricsFile
from ml_pipeline.monitoring.monitor_csv import MonitorCsv
from ml_pipeline.monitoring.progress import Progress
from ml_pipeline.monitoring.sink import Sinks
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runs.train_config import LATEST_CHECKPOINT, SETTINGS_FILE, TrainConfig, TrainStart, runs_folder

BEST_CHECKPOINT = "best.pt"


class Task(Protocol):
    """What is to be learned: `GymTask` or `TradingTask`."""

    name: str
    notices: tuple[str, ...]
    """Sentences for the user about what was found in the data."""

    def train_env_fns(self, n: int) -> Sequence[Callable[[], gymnasium.Env]]:
        """Factories of n environments to train in."""

    def batched_train_env(self, n: int, *, device: str | None = None) -> VectorEnv:
        """The same environments as one, of tensors on a device or of arrays; asked for only where the settings say
        batched."""

    def score(self, act: Callable[[Any], Any]) -> float:
        """How good a policy is while training goes on, on data that it is not trained on; higher is better."""

    def report(self, act: Callable[[Any], Any], folder: Path) -> str:
        """The verdict on a trained policy: files in `folder`, and what to print."""

    def state(self) -> dict[str, Any]:
        """What the policy depends on besides its weights, for the checkpoint."""


def run_training(start: TrainStart, task: Task) -> int:
    """Train, evaluate and save as `start` asks; return the exit code: 0, or 128 + the signal that stopped the run.

    Raises UserError where a checkpoint, a device or the run folder cannot be used, and VectorEnvError or TrainingFailed
    where the run breaks down; with a note on how to go on, once there is a checkpoint.
    """
    saved = load_checkpoint(start.checkpoint) if start.checkpoint else None
    device = choose_device(start.config.run.device)
    config, folder = _with_folder(start.config, task.name, resumed=saved is not None)
    if saved and saved["task"] != task.state():
        raise UserError(
            "The market data are not those that the run was trained on; train anew on them, or judge the run on them "
            f"by evaluate_ppo.py {folder / BEST_CHECKPOINT} --data."
        )
    for notice in task.notices:
        print(notice)
    with ExitStack() as stack:
        envs = stack.enter_context(closing(make_envs(config, task)))
        n_workers, method = (envs.num_workers, envs.start_method) if isinstance(envs, ParallelEnv) else (0, None)
        print(banner(n_envs=envs.num_envs, n_workers=n_workers, start_method=method))
        print(f"   Run folder: {_shown(folder)}", flush=True)
        policy = make_policy(config, envs.single_observation_space, envs.single_action_space, device=device)
        run = _Run(config, task, envs, policy, folder=folder, saved=saved)
        stack.callback(run.close)
        signal_number = run.train()
        if signal_number is not None:
            return 128 + signal_number
    policy.load_state_dict(load_checkpoint(folder / BEST_CHECKPOINT)["trainer"]["policy"])
    with report_folder(folder):
        print(f"{task.report(policy.act, folder)}\n\nWritten to {_shown(folder)}", flush=True)
    return 0


@contextmanager
def report_folder(folder: Path) -> Iterator[None]:
    """A folder to write a report into within the block. Raises UserError where it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"The report cannot be written to {folder}: {error.strerror}; choose another.") from error


def make_policy(
    config: TrainConfig, observation_space: gymnasium.Space, action_space: gymnasium.Space, *, device: str
) -> Policy:
    """A new policy of the configured kind for the spaces of a single environment."""
    return Policy(observation_space, action_space, config.ppo, seed=config.run.seed, device=device)


class _Run:
    """A trainer with its run folder: metrics, checkpoints and the best policy so far."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        envs: VectorEnv,
        policy: Policy,
        *,
        folder: Path,
        saved: Mapping[str, Any] | None,
    ) -> None:
        self._config = config
        self._task = task
        self._envs = envs
        self._folder = folder
        self._best_score = -math.inf if saved is None else saved["best_score"]
        run = config.run
        self._target = None if run.stop_at_return is None else StopAtReturn(run.stop_at_return)
        self._plateau = None if run.stop_on_plateau is None else StopOnPlateau(run.stop_on_plateau)
        self._sinks = Sinks()
        self._trainer = PPOTrainer(
            envs,
            config.ppo,
            total_timesteps=config.timesteps,
            policy=policy,
            seed=config.run.seed,
            sink=self._sinks,
        )
        if saved:
            self._trainer.load_state_dict(saved["trainer"])
            if self._plateau is not None and saved["plateau"] is not None:
                self._plateau.load_state_dict(saved["plateau"])
        # Nothing of an earlier run is touched before all that could be refused has been accepted.
        _make_folder(folder)
        write_yaml(folder / SETTINGS_FILE, flatten(config))
        resume_step = self._trainer.global_step if saved else None
        metrics = MetricsFile(folder / "metrics.jsonl", resume_step=resume_step)
        self._sinks.add(metrics)
        self._sinks.add(MonitorCsv(folder / "monitor.csv", resume_step=metrics.last_step if saved else None))
        self._progress = Progress(
            total_iterations=self._trainer.total_iterations,
            total_steps=self._trainer.total_timesteps,
            n_envs=config.run.n_envs,
            first_step=self._trainer.global_step,
        )
        self._sinks.add(self._progress)
        if saved:
            self._say_where_it_goes_on(saved["trainer"])

    def close(self) -> None:
        self._sinks.close()

    def train(self) -> int | None:
        """Train to the end and return None, or return the signal that stopped it, after saving."""
        run = self._config.run
        if self._trainer.global_step == 0:
            self._save_latest(self._trainer)  # a run that is killed before its first checkpoint can be gone on with too
        with _told_how_to_go_on(self._folder), stop_on_signals(self._stop) as received:
            self._trainer.train(
                evaluate=Every(run.eval_interval, self._evaluate),
                save=Every(run.checkpoint_interval, self._save_latest),
                after_iteration=self._after_iteration,
            )
        finished = self._trainer.finished
        if not finished and not received:
            self._progress.say(f"Training ends early, after episode {self._trainer.iteration}.")
            self._evaluate(self._trainer)
        self._progress.close()
        if finished:
            return None
        self._save_latest(self._trainer)
        if not received:
            return None
        print(
            f"Saved {_shown(self._folder / LATEST_CHECKPOINT)} at step {self._trainer.global_step:,}; go on with:\n"
            f"  {_resumption(self._folder)}"
        )
        return received[0]

    def _stop(self) -> None:
        self._trainer.request_stop()
        self._progress.say("Stopping after this step, then saving; once more to stop without saving.")

    def _after_iteration(self, trainer: Trainer, statistics: Statistics) -> None:
        for failure in self._envs.take_failures() if isinstance(self._envs, ParallelEnv) else ():
            self._progress.say(f"{failure} Another took its place; the episodes that it lost count as truncated.")
        for hook in (self._target, self._plateau):
            if hook is not None:
                hook(trainer, statistics)

    def _evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Score the policy; a score that no earlier one reached goes into best.pt."""
        score = self._task.score(trainer.policy.act)
        self._progress.say(f"Evaluation after episode {trainer.iteration}: {score:,.4g}")
        if score > self._best_score or self._best_score == -math.inf:
            self._best_score = score
            self._save(trainer, BEST_CHECKPOINT)
        return {"eval/score": score}

    def _save_latest(self, trainer: Trainer) -> None:
        self._save(trainer, LATEST_CHECKPOINT)

    def _save(self, trainer: Trainer, name: str) -> None:
        state = {
            "trainer": trainer.state_dict(),
            "config": flatten(self._config),
            "task": self._task.state(),
            "best_score": self._best_score,
            "plateau": None if self._plateau is None else self._plateau.state_dict(),
        }
        save_checkpoint(self._folder / name, state)

    def _say_where_it_goes_on(self, trainer_state: Mapping[str, Any]) -> None:
        self._progress.say(f"Going on after episode {self._trainer.iteration}, step {self._trainer.global_step:,}.")
        if trainer_state["environments"] is None:
            self._progress.say(f"The environments begin new episodes: {trainer_state['environments_missing']}")


def make_envs(config: TrainConfig, task: Task) -> VectorEnv:
    """The environments to train in, as `RunConfig.vec_env` says."""
    run = config.run
    if run.vec_env == "batched":
        # On a CPU arrays, compiled, train 1.8 times as fast as tensors (4,096 environments, benchmarks/gpu.py).
        return task.batched_train_env(run.n_envs, device=None if run.device in {"auto", "cpu"} else run.device)
    return ParallelEnv(
        task.train_env_fns(run.n_envs),
        num_workers=0 if run.vec_env == "serial" else run.n_workers,
        start_method=run.parallel_start_method,
        step_timeout_s=run.step_timeout_s,
        on_worker_failure=run.on_worker_failure,
        copy=False,  # the trainer copies what it keeps
    )


def _with_folder(config: TrainConfig, task_name: str, *, resumed: bool) -> tuple[TrainConfig, Path]:
    """The settings with the run folder that they mean, and the folder. Raises UserError where it holds another run."""
    folder = config.run.checkpoint_dir or _new_folder(task_name)
    if not resumed and (folder / LATEST_CHECKPOINT).exists():
        raise UserError(f"{folder} holds a run already; go on with it by --resume {folder}, or name another folder.")
    return replace(config, run=replace(config.run, checkpoint_dir=folder)), folder


@contextmanager
def _told_how_to_go_on(folder: Path) -> Iterator[None]:
    """What breaks a run down in the block carries a note on how to resume it."""
    try:
        yield
    except (VectorEnvError, TrainingFailed) as error:
        error.add_note(
            f"The last checkpoint is whole: once the cause is mended, go on from it with:\n  {_resumption(folder)}"
        )
        raise


def _resumption(folder: Path) -> str:
    return f"python -m ml_pipeline.train_ppo --resume {_shown(folder)}"


def _shown(path: Path) -> Path:
    """As a user would type it: from the working directory, where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be made: {error.strerror}; choose another.") from error


def _new_folder(task_name: str) -> Path:
    name = f"{task_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken = (runs_folder() / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(folder for folder in taken if not folder.exists())
