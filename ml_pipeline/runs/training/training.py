"""The training part of a run: a trainer with its environments, and what happens between its iterations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import score_unit, shown_path
from ml_pipeline.models.rl.algorithms.early_stopping import StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.interruption import InterruptedBetweenSteps
from ml_pipeline.models.rl.algorithms.trainer import Every, Statistics, Trainer
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.policies.device_choice import choose_device
from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
from ml_pipeline.monitoring.metrics_file import METRICS_FILE, MetricsFile
from ml_pipeline.monitoring.resources import Gpu, Resources
from ml_pipeline.monitoring.sink import Sinks
from ml_pipeline.runs.checkpoint import reading
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.initial_policy import load_initial_policy
from ml_pipeline.runs.ranks.consistency import require_same_spaces
from ml_pipeline.runs.ranks.metrics import of_all_ranks
from ml_pipeline.runs.ranks.stopping import share_stop, stops_shared
from ml_pipeline.runs.requests import RequestHandling
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training.announcement import opening_sentences, run_start
from ml_pipeline.runs.training.env_scaling import EnvScaling, n_envs_in
from ml_pipeline.runs.training.files import begin_files, last_row_has_other_n_envs, write_settings
from ml_pipeline.runs.training.saving import Checkpoints
from ml_pipeline.runs.training.scoring import Scoring
from ml_pipeline.runs.training.setup import RunSetup
from ml_pipeline.runs.training.trainers import make_trainer
from ml_pipeline.runs.training.worker_scaling import WorkerScaling


class Training:
    """Trains, saves and evaluates in one folder; `close` closes the environments and the files."""

    def __init__(self, setup: RunSetup, folder: Path) -> None:
        """Raises UserError if a setting is invalid; the run folder is left unchanged."""
        self._setup = setup
        self._folder = folder
        self._ended_early = False
        self._metrics: MetricsFile | None = None
        config, run, say = setup.config, setup.config.run, setup.listener.say
        self._ranks = ranks = setup.ranks
        self._checkpoints = Checkpoints(folder, setup.task, say, ranks=ranks)
        self.scoring = Scoring(
            setup.task,
            setup.stop,
            say,
            save_best=lambda trainer: self._save(trainer, BEST_CHECKPOINT),
            unit=score_unit(run.env_id, config.trading.score),
            ranks=ranks,
        )
        self._evaluation: Every[Mapping[str, float]] = Every(run.eval_interval, self.scoring)
        device = choose_device(run.device)
        saved = None
        if setup.checkpoint is not None:
            saved = self._checkpoints.load(setup.checkpoint, trusted=setup.trust_checkpoint)
        self._target = None if run.stop_at_return is None else StopAtReturn(run.stop_at_return)
        self._plateau = None if run.stop_on_plateau is None else StopOnPlateau(run.stop_on_plateau)
        self._sinks = Sinks()
        with ExitStack() as stack:
            n_envs = n_envs_in(saved, run)
            self._env_scaling = EnvScaling(config, setup.task, envs=setup.envs, n_envs=n_envs, say=say, ranks=ranks)
            envs = stack.enter_context(closing(self._env_scaling)).envs
            if ranks is not None:
                require_same_spaces(ranks, envs)
            self.trainer = make_trainer(config, envs, device=device, sink=self._sinks, ranks=ranks)
            self.policy = self.trainer.policy
            if saved is not None:
                self._restore(saved)
            elif run.init_from is not None:
                load_initial_policy(self.policy, config)
            # Nothing of an earlier run is touched before all that could be refused has been accepted.
            if not self.trainer.finished and self._has_folder:
                resume_step = None if saved is None else self.trainer.global_step
                self._metrics, episodes = begin_files(folder, config, setup.task, resume_step=resume_step)
                files = stack.enter_context(closing(Sinks(self._metrics, episodes)))
                for sink in (files, *setup.sinks):
                    self._sinks.add(sink)
            self._worker_scaling = WorkerScaling(
                lambda: self._env_scaling.envs,
                say,
                dynamic=run.n_workers == "dynamic",
                vec_env=run.vec_env,
            )
            self._requests = RequestHandling(folder, say, ranks=ranks)
            self._requests.handlers.update(n_workers=self._worker_scaling.request, n_envs=self._env_scaling.request)
            self._resources = stack.enter_context(closing(self._sampled_resources(device)))
            self._resumed_from = saved
            self._closing = stack.pop_all()

    def close(self) -> None:
        """Close the environments and the files; the policy goes on acting. May be called twice."""
        self._closing.close()

    @property
    def _has_folder(self) -> bool:
        """Whether this process writes the run folder."""
        return self._ranks is None or self._ranks.is_first

    def train(self) -> tuple[Literal["finished", "stopped"], str | None]:
        """Train to the end or to a stop, and save; return how it ended, and why if it was before all iterations.

        Raises VectorEnvError or TrainingFailed, with a note on how to resume, where training breaks down, and
        KeyboardInterrupt after Ctrl-C.
        """
        self._announce()
        with nullcontext() if self._ranks is None else stops_shared(self._ranks, self._setup.stop):
            if self.scoring.is_due:
                self._evaluate_late()
            if not self._ended_early:
                self._train_on()
        if self.scoring.is_due or not (self.trainer.finished or self._ended_early):
            return "stopped", self._setup.stop.reason
        return "finished", self._early_reason() if self._ended_early else None

    def _train_on(self) -> None:
        """Train to the last iteration, an early end or a stop, and save."""
        trainer, setup = self.trainer, self._setup
        if (
            not trainer.finished
            and not self._rescaled(trainer, at_start=True)
            and not self._is_latest(self._resumed_from)
        ):
            self._save_latest(trainer)  # a run that is killed before its first checkpoint can be resumed too
        try:
            with resume_hint(self._folder, lambda: trainer.global_step > 0), setup.stop.told_to(trainer.request_stop):
                trainer.train(
                    evaluate=self._evaluation,
                    save=Every(1, self._after_report),
                    after_iteration=self._after_iteration,
                    progress=False,
                )
        except InterruptedBetweenSteps:
            self._save_latest(trainer)
            raise
        if self._ranks is not None:
            share_stop(self._ranks, setup.stop)
        if not trainer.finished and not setup.stop.requested:
            self._ended_early = True
            setup.listener.say(self._early_reason())
            self.scoring(trainer)
        if self.scoring.is_due or not trainer.finished:
            self._save_latest(trainer)

    def _after_report(self, trainer: Trainer) -> None:
        """Change what is to change before the next iteration, and save where it has changed or a checkpoint is due."""
        if self._ranks is not None and self._evaluation.due(trainer):
            # Who hears of a score may stop the run by it, as a pruner does: then before the next step of any rank.
            share_stop(self._ranks, self._setup.stop)
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
        n_envs = self._env_scaling.n_envs
        if self._ranks is not None:
            return bool(self._ranks.first("the metrics", lambda: last_row_has_other_n_envs(self._folder, n_envs)))
        return last_row_has_other_n_envs(self._folder, n_envs)

    def _save_changed(self, trainer: Trainer) -> None:
        self._save_latest(trainer)
        if self._has_folder:
            write_settings(self._folder, self._env_scaling.config)

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

    def _announce(self) -> None:
        listener, n_ranks = self._setup.listener, 1 if self._ranks is None else self._ranks.size
        listener.started(run_start(self._folder, self.trainer, self._env_scaling, n_ranks=n_ranks))
        for sentence in opening_sentences(self.trainer, self._resumed_from):
            listener.say(sentence)
        if self._has_folder:  # the other ranks have nobody who listens before the first iteration ends
            for sentence in self._sentences_of_workers():
                listener.say(sentence)

    def _sampled_resources(self, device: str) -> Resources:
        def worker_pids() -> Sequence[int]:
            envs = self._env_scaling.envs
            return envs.worker_pids if isinstance(envs, ParallelEnv) else ()

        threaded = self._setup.config.run.parallel_start_method != "fork"
        return Resources(worker_pids=worker_pids, gpu=Gpu.of(device), threaded=threaded)

    def _sentences_of_workers(self) -> list[str]:
        """Which workers were replaced, and why environments have no lease."""
        envs = self._env_scaling.envs
        if not isinstance(envs, ParallelEnv):
            return []
        replaced = "Another took its place; the episodes that it lost count as truncated."
        return [*(f"{failure} {replaced}" for failure in envs.take_failures()), *envs.take_notices()]

    def _after_iteration(self, trainer: Trainer, statistics: Statistics) -> dict[str, float]:
        """What the hooks add to the metrics of the iteration."""
        self.require_folder()
        metrics: dict[str, float] = {}
        for hook in (self._target, self._plateau, self._resources, self._worker_scaling):
            if hook is not None:
                metrics.update(hook(trainer, statistics) or {})
        sentences = self._sentences_of_workers()
        if self._ranks is not None:
            metrics, sentences = of_all_ranks(self._ranks, metrics, sentences, n_envs=self._env_scaling.n_envs)
        for sentence in sentences:
            self._setup.listener.say(sentence)
        return metrics

    def _evaluate_late(self) -> None:
        """Do what a stop left undone: evaluate, and add the score to the metrics of that iteration."""
        path, step = self._folder / METRICS_FILE, self.trainer.global_step
        scores = self.scoring(self.trainer)
        if scores and self._has_folder:
            with ExitStack() as stack:
                metrics = self._metrics or stack.enter_context(closing(MetricsFile(path, resume_step=step)))
                metrics.add_to_last(step, scores)
        self._save_latest(self.trainer)

    def _save_latest(self, trainer: Trainer) -> None:
        self._save(trainer, LATEST_CHECKPOINT)

    def _save(self, trainer: Trainer, name: str) -> None:
        state = {
            "config": settings_kept(self._env_scaling.config),
            "n_envs": self._env_scaling.n_envs,
            "plateau": None if self._plateau is None else self._plateau.state_dict(),
            "ended_early": self._ended_early,
            **self.scoring.state_dict(),
        }
        self._checkpoints.save(name, trainer, state)

    def _is_latest(self, saved: Mapping[str, Any] | None) -> bool:
        """Whether latest.pt is the checkpoint that is resumed, with the very settings of now."""
        is_latest = self._setup.checkpoint == self._folder / LATEST_CHECKPOINT
        return saved is not None and is_latest and saved["config"] == settings_kept(self._setup.config)


def settings_kept(config: TrainConfig) -> dict[str, object]:
    """What a checkpoint holds: all settings but those of who computes."""
    return {name: value for name, value in flatten(config).items() if name not in OF_LAUNCH}


@contextmanager
def resume_hint(folder: Path, has_trained: Callable[[], bool]) -> Iterator[None]:
    """Add a note on how to resume to an error that breaks down training in the block, if it has trained before.

    A run that failed in its first `reset()` has nothing to go on from.
    """
    try:
        yield
    except (VectorEnvError, TrainingFailed) as error:
        if has_trained():
            where = shown_path(folder)
            error.add_note(f"The last checkpoint is whole: once the cause is mended, resume the run in {where}.")
        raise
