"""The training part of a run: a trainer with its environments, and what happens between its iterations."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gymnasium.vector import VectorEnv

from ml_pipeline.config.env_schedule import planned_end
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.models.rl.algorithms.early_stopping import StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.interruption import InterruptedBetweenSteps
from ml_pipeline.models.rl.algorithms.trainer import Every, Statistics, Trainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.policies.device_choice import choose_device
from ml_pipeline.monitoring.line_file import read_lines
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.metrics_file import METRICS_FILE, MetricsFile
from ml_pipeline.monitoring.monitor_csv import EPISODES_FILE, MonitorCsv
from ml_pipeline.monitoring.resources import Gpu, Resources
from ml_pipeline.monitoring.sink import MetricsSink, Sinks
from ml_pipeline.runs.checkpoint import reading
from ml_pipeline.runs.env_scaling import EnvScaling, n_envs_in
from ml_pipeline.runs.folder import (
    BEST_CHECKPOINT,
    LATEST_CHECKPOINT,
    SETTINGS_FILE,
)
from ml_pipeline.runs.requests import RequestHandling
from ml_pipeline.runs.resume_hint import resume_hint
from ml_pipeline.runs.saving import Checkpoints
from ml_pipeline.runs.scoring import Scoring
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trainers import make_trainer
from ml_pipeline.runs.worker_scaling import WorkerScaling


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What a run is made of. checkpoint: the one that it continues. trust_checkpoint: also open what it holds that can
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


class Training:
    """Trains, saves and evaluates in one folder; `close` closes the environments and the files."""

    def __init__(self, setup: RunSetup, folder: Path) -> None:
        """Raises UserError where anything cannot be used; the run folder is then as it was."""
        self._setup = setup
        self._folder = folder
        self._ended_early = False
        self._metrics: MetricsFile | None = None
        config, run, say = setup.config, setup.config.run, setup.listener.say
        self._checkpoints = Checkpoints(folder, setup.task, say)
        self.scoring = Scoring(
            setup.task, setup.stop, say, save_best=lambda trainer: self._save(trainer, BEST_CHECKPOINT)
        )
        device = choose_device(run.device)
        saved = None
        if setup.checkpoint is not None:
            saved = self._checkpoints.load(setup.checkpoint, trusted=setup.trust_checkpoint)
        self._target = None if run.stop_at_return is None else StopAtReturn(run.stop_at_return)
        self._plateau = None if run.stop_on_plateau is None else StopOnPlateau(run.stop_on_plateau)
        self._sinks = Sinks()
        with ExitStack() as stack:
            self._env_scaling = EnvScaling(config, setup.task, envs=setup.envs, n_envs=n_envs_in(saved, run), say=say)
            envs = stack.enter_context(closing(self._env_scaling)).envs
            self.trainer = make_trainer(config, envs, device=device, sink=self._sinks)
            self.policy = self.trainer.policy
            if saved is not None:
                self._restore(saved)
            # Nothing of an earlier run is touched before all that could be refused has been accepted.
            if not self.trainer.finished:
                files = stack.enter_context(closing(self._begin_files(resumed=saved is not None)))
                for sink in (files, *setup.sinks):
                    self._sinks.add(sink)
            self._worker_scaling = WorkerScaling(
                lambda: self._env_scaling.envs,
                say,
                dynamic=run.n_workers == "dynamic",
                vec_env=run.vec_env,
            )
            self._requests = RequestHandling(folder, say)
            self._requests.handlers.update(n_workers=self._worker_scaling.request, n_envs=self._env_scaling.request)
            self._resources = stack.enter_context(closing(self._sampled_resources(device)))
            self._resumed_from = saved
            self._closing = stack.pop_all()

    def close(self) -> None:
        """Close the environments and the files; the policy goes on acting. May be called twice."""
        self._closing.close()

    def train(self) -> tuple[Literal["finished", "stopped"], str | None]:
        """Train to the end or to a stop, and save; return how it ended, and why if it was before all iterations.

        Raises VectorEnvError or TrainingFailed, with a note on how to resume, where training breaks down, and
        KeyboardInterrupt after Ctrl-C.
        """
        self._announce()
        if self.scoring.is_due:
            self._evaluate_late()
        if not self._ended_early:
            self._train_on()
        if self.scoring.is_due or not (self.trainer.finished or self._ended_early):
            return "stopped", self._setup.stop.reason
        return "finished", self._early_reason() if self._ended_early else None

    def _train_on(self) -> None:
        """Train to the last iteration, an early end or a stop, and save."""
        trainer, run, setup = self.trainer, self._setup.config.run, self._setup
        if (
            not trainer.finished
            and not self._rescaled(trainer, at_start=True)
            and not self._is_latest(self._resumed_from)
        ):
            self._save_latest(trainer)  # a run that is killed before its first checkpoint can be resumed too
        try:
            with resume_hint(self._folder), setup.stop.told_to(trainer.request_stop):
                trainer.train(
                    evaluate=Every(run.eval_interval, self.scoring),
                    save=Every(1, self._after_report),
                    after_iteration=self._after_iteration,
                    progress=False,
                )
        except InterruptedBetweenSteps:
            self._save_latest(trainer)
            raise
        if not trainer.finished and not setup.stop.requested:
            self._ended_early = True
            setup.listener.say(self._early_reason())
            self.scoring(trainer)
        if self.scoring.is_due or not trainer.finished:
            self._save_latest(trainer)

    def _after_report(self, trainer: Trainer) -> None:
        """Change what is to change before the next iteration, and save where it has changed or a checkpoint is due."""
        if not self._rescaled(trainer) and Every(self._setup.config.run.checkpoint_interval, self._save_latest).due(
            trainer
        ):
            self._save_latest(trainer)

    def _rescaled(self, trainer: Trainer, *, at_start: bool = False) -> bool:
        """Whether the number of environments has changed, and the run was saved since.

        A schedule has room for one change at a step. So where a resumed run had changed at this very step, what it is
        asked for waits for the end of its next iteration.
        """
        if not self._env_scaling.may_change(trainer):
            return False
        if not (at_start and self._resumed_from is not None and self._has_changed_here()):
            self._requests()
        return self._env_scaling.apply(trainer, save=partial(self._save_changed, trainer))

    def _has_changed_here(self) -> bool:
        """Whether the last iteration was made in another number of environments than the next one will be."""
        rows = read_lines(self._folder / METRICS_FILE)
        try:
            return bool(rows) and json.loads(rows[-1]).get("time/n_envs") != self._env_scaling.envs.num_envs
        except (ValueError, AttributeError):  # a row that somebody wrote: at worst it waits
            return True

    def _save_changed(self, trainer: Trainer) -> None:
        self._save_latest(trainer)
        write_yaml(self._folder / SETTINGS_FILE, _for_another_run(self._env_scaling.config))

    def _early_reason(self) -> str:
        return f"Training ends early, after iteration {self.trainer.iteration}."

    def load_best_policy(self) -> None:
        """Let the policy be the best so far; where best.pt is gone, it stays the last one."""
        self._checkpoints.load_best(self.policy)

    def require_folder(self) -> None:
        """Raise UserError where the run folder is no longer the one that the run began in."""
        self._checkpoints.require_folder()

    def _restore(self, saved: Mapping[str, Any]) -> None:
        assert self._setup.checkpoint is not None
        with reading(self._setup.checkpoint):
            self.trainer.load_state_dict(saved["trainer"])
            if self._plateau is not None and saved["plateau"] is not None:
                self._plateau.load_state_dict(saved["plateau"])
            self.scoring.load_state_dict(saved, has_best=self._checkpoints.has_best())
            # With a score, a resumption trains on: its settings may ask for more.
            self._ended_early = self.scoring.is_due and saved.get("ended_early", False)

    def _begin_files(self, *, resumed: bool) -> Sinks:
        """The sinks that write into the folder, and its settings; where one fails, those that were not there go."""
        resume_step = self.trainer.global_step if resumed else None
        names = (METRICS_FILE, EPISODES_FILE, SETTINGS_FILE)
        with ExitStack() as undo:
            for path in (self._folder / name for name in names if not (self._folder / name).exists()):
                undo.callback(path.unlink, missing_ok=True)
            metrics = MetricsFile(self._folder / METRICS_FILE, resume_step=resume_step)
            undo.callback(metrics.close)
            self._metrics = metrics
            episodes = MonitorCsv(self._folder / EPISODES_FILE, resume_step=metrics.last_step if resumed else None)
            undo.callback(episodes.close)
            write_yaml(self._folder / SETTINGS_FILE, _for_another_run(self._setup.config))
            undo.pop_all()
        return Sinks(metrics, episodes)

    def _announce(self) -> None:
        trainer, listener = self.trainer, self._setup.listener
        envs = self._env_scaling.envs
        parallel = envs if isinstance(envs, ParallelEnv) else None
        total_iterations, total_steps = self._planned_length()
        listener.started(
            RunStart(
                folder=self._folder,
                n_envs=envs.num_envs,
                n_workers=parallel.num_workers if parallel else 0,
                start_method=parallel.start_method if parallel else None,
                total_iterations=total_iterations,
                total_steps=total_steps,
                first_step=trainer.global_step,
                n_envs_schedule=self._setup.config.run.n_envs_schedule,
            )
        )
        if self._resumed_from is not None:
            listener.say(f"Going on after iteration {trainer.iteration}, step {trainer.global_step:,}.")
            if trainer.finished:
                listener.say("All steps are done, so nothing is trained; a larger total_timesteps trains on.")
            state = self._resumed_from["trainer"]
            if state["environments"] is None:
                listener.say(f"The environments begin new episodes: {state['environments_missing']}")
        for sentence in getattr(trainer, "notices", ()):
            listener.say(sentence)
        self._tell_of_workers()

    def _planned_length(self) -> tuple[int, int]:
        """At which iteration and global step training ends, the planned numbers of environments considered."""
        trainer, run, n_steps = self.trainer, self._setup.config.run, self._setup.config.ppo.n_steps
        left = trainer.total_iterations - trainer.iteration
        if not run.n_envs_schedule or left <= 0:
            return trainer.total_iterations, trainer.total_timesteps
        start = trainer.total_timesteps - left * self._env_scaling.envs.num_envs * n_steps  # of the next iteration
        more, end = planned_end(
            run.timesteps(n_steps),
            step=start,
            n_steps=n_steps,
            n_envs=run.n_envs_at(start),
            schedule=run.n_envs_schedule,
        )
        return trainer.iteration + more, end

    def _sampled_resources(self, device: str) -> Resources:
        def worker_pids() -> Sequence[int]:
            envs = self._env_scaling.envs
            return envs.worker_pids if isinstance(envs, ParallelEnv) else ()

        threaded = self._setup.config.run.parallel_start_method != "fork"
        return Resources(worker_pids=worker_pids, gpu=Gpu.of(device), threaded=threaded)

    def _tell_of_workers(self) -> None:
        """Say which workers were replaced, and where a pool of warm workers lent none."""
        envs, say = self._env_scaling.envs, self._setup.listener.say
        if not isinstance(envs, ParallelEnv):
            return
        for failure in envs.take_failures():
            say(f"{failure} Another took its place; the episodes that it lost count as truncated.")
        for sentence in envs.take_notices():
            say(sentence)

    def _after_iteration(self, trainer: Trainer, statistics: Statistics) -> dict[str, float]:
        """What the hooks add to the metrics of the iteration."""
        self._tell_of_workers()
        self.require_folder()
        metrics: dict[str, float] = {}
        for hook in (self._target, self._plateau, self._resources, self._worker_scaling):
            if hook is not None:
                metrics.update(hook(trainer, statistics) or {})
        return metrics

    def _evaluate_late(self) -> None:
        """Do what a stop left undone: evaluate, and add the score to the metrics of that iteration."""
        path, step = self._folder / METRICS_FILE, self.trainer.global_step
        if scores := self.scoring(self.trainer):
            with ExitStack() as stack:
                metrics = self._metrics or stack.enter_context(closing(MetricsFile(path, resume_step=step)))
                metrics.add_to_last(step, scores)
        self._save_latest(self.trainer)

    def _save_latest(self, trainer: Trainer) -> None:
        self._save(trainer, LATEST_CHECKPOINT)

    def _save(self, trainer: Trainer, name: str) -> None:
        state = {
            "config": flatten(self._env_scaling.config),
            "n_envs": self._env_scaling.envs.num_envs,
            "plateau": None if self._plateau is None else self._plateau.state_dict(),
            "ended_early": self._ended_early,
            **self.scoring.state_dict(),
        }
        self._checkpoints.save(name, trainer, state)

    def _is_latest(self, saved: Mapping[str, Any] | None) -> bool:
        """Whether latest.pt is the checkpoint that is resumed, with the very settings of now."""
        is_latest = self._setup.checkpoint == self._folder / LATEST_CHECKPOINT
        return saved is not None and is_latest and saved["config"] == flatten(self._setup.config)


def _for_another_run(config: TrainConfig) -> dict[str, object]:
    """Every setting but the folder, which this run has taken: the file may be the --config of other runs."""
    return {name: value for name, value in flatten(config).items() if name != "checkpoint_dir"}
