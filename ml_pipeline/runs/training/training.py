"""The training part of a run: a trainer with its environments, and what happens between its iterations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import score_unit, shown_path
from ml_pipeline.models.rl.algorithms.early_stopping import StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.interruption import InterruptedBetweenSteps
from ml_pipeline.models.rl.algorithms.trainer import Every, Statistics, Trainer, is_due
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
from ml_pipeline.runs.recording import Recording
from ml_pipeline.runs.requests import RequestHandling
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training.announcement import opening_sentences, run_start
from ml_pipeline.runs.training.env_scaling import EnvScaling, n_envs_in
from ml_pipeline.runs.training.files import begin_files, last_row_has_other_n_envs, write_settings
from ml_pipeline.runs.training.saving import Checkpoints
from ml_pipeline.runs.training.scoring import Scoring
from ml_pipeline.runs.training.trainers import make_trainer
from ml_pipeline.runs.training.worker_scaling import WorkerScaling

if TYPE_CHECKING:
    from ml_pipeline.runs.run import Run


class Training:
    """Trains, evaluates, saves and rescales in one folder; `close` closes the environments and the files.

    After each iteration: the hooks (early stopping, resources, workers), the evaluation if it is due, the report of the
    figures of both to the sinks, then another number of environments or the checkpoint that is due.
    """

    def __init__(self, run: "Run", config: TrainConfig, folder: Path, recording: Recording | None = None) -> None:
        """config: the settings of the run, with its folder. recording: of the first rank, which has the folder.

        Raises UserError if a setting is invalid; the run folder is left unchanged.
        """
        self._run = run
        self._config = config
        self._folder = folder
        self._ranks = ranks = run.ranks
        self._listener = run.listener if recording is None else recording.listener
        self._ended_early = False
        self._metrics: MetricsFile | None = None
        settings, say = config.run, self._listener.say
        self._checkpoints = Checkpoints(folder, run.task, say, ranks=ranks)
        self.scoring = Scoring(
            run.task,
            run.stop,
            say,
            save_best=lambda trainer: self._save(trainer, BEST_CHECKPOINT),
            unit=score_unit(settings.env_id, config.trading.score),
            ranks=ranks,
        )
        device = choose_device(settings.device)
        saved = None
        if run.checkpoint is not None:
            saved = self._checkpoints.load(run.checkpoint, trusted=run.trust_checkpoint)
        self._target = None if settings.stop_at_return is None else StopAtReturn(settings.stop_at_return)
        self._plateau = None if settings.stop_on_plateau is None else StopOnPlateau(settings.stop_on_plateau)
        self._sinks = Sinks()
        with ExitStack() as stack:
            n_envs = n_envs_in(saved, settings)
            self._env_scaling = EnvScaling(config, run.task, envs=run.envs, n_envs=n_envs, say=say, ranks=ranks)
            envs = stack.enter_context(closing(self._env_scaling)).envs
            require_same_spaces(ranks, envs)
            self.trainer = make_trainer(config, envs, device=device, sink=self._sinks, ranks=ranks)
            self.policy = self.trainer.policy
            if saved is not None:
                self._restore(saved)
            elif settings.init_from is not None:
                load_initial_policy(self.policy, config)
            # Nothing of an earlier run is touched before all that could be refused has been accepted.
            if not self.trainer.finished and ranks.is_first:
                resume_step = None if saved is None else self.trainer.global_step
                self._metrics, episodes = begin_files(folder, config, run.task, resume_step=resume_step)
                files = stack.enter_context(closing(Sinks(self._metrics, episodes)))
                for sink in (files, *run.sinks, *([] if recording is None else recording.sinks)):
                    self._sinks.add(sink)
            self._worker_scaling = WorkerScaling(
                lambda: self._env_scaling.envs,
                say,
                dynamic=settings.n_workers == "dynamic",
                vec_env=settings.vec_env,
            )
            self._requests = RequestHandling(folder, say, ranks=ranks)
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
        with stops_shared(self._ranks, self._run.stop):
            if self.scoring.is_due:
                self._evaluate_late()
            if not self._ended_early:
                self._train_on()
        if self.scoring.is_due or not (self.trainer.finished or self._ended_early):
            return "stopped", self._run.stop.reason
        return "finished", self._early_reason() if self._ended_early else None

    def _train_on(self) -> None:
        """Train to the last iteration, an early end or a stop, and save."""
        trainer, stop = self.trainer, self._run.stop
        if not trainer.finished and not self._rescaled(at_start=True) and not self._is_latest(self._resumed_from):
            self._save_latest(trainer)  # a run that is killed before its first checkpoint can be resumed too
        try:
            with resume_hint(self._folder, lambda: trainer.global_step > 0), stop.told_to(trainer.request_stop):
                trainer.train(
                    after_iteration=self._after_iteration,
                    evaluate=Every(self._config.run.eval_interval, self.scoring),
                    save=Every(1, self._rescale_or_save),  # after the trainer has written the metrics to the sinks
                    progress=False,
                )
        except InterruptedBetweenSteps:
            self._save_latest(trainer)
            raise
        share_stop(self._ranks, stop)
        if not trainer.finished and not stop.requested:
            self._ended_early = True
            self._listener.say(self._early_reason())
            self.scoring(trainer)
        if self.scoring.is_due or not trainer.finished:
            self._save_latest(trainer)

    def _after_iteration(self, trainer: Trainer, statistics: Statistics) -> dict[str, float]:
        """What the hooks add to the metrics of the iteration."""
        self.require_folder()
        metrics: dict[str, float] = {}
        for hook in (self._target, self._plateau, self._resources, self._worker_scaling):
            if hook is not None:
                metrics.update(hook(trainer, statistics) or {})
        sentences = self._sentences_of_workers()
        metrics, sentences = of_all_ranks(self._ranks, metrics, sentences, n_envs=self._env_scaling.n_envs)
        for sentence in sentences:
            self._listener.say(sentence)
        return metrics

    def _rescale_or_save(self, trainer: Trainer) -> None:
        """Apply a change of the number of environments, which saves, or save if a checkpoint is due."""
        run = self._config.run
        if is_due(trainer, run.eval_interval):
            # Who hears of a score may stop the run by it, as a pruner does: then before the next step of any rank.
            share_stop(self._ranks, self._run.stop)
        if not self._rescaled() and is_due(trainer, run.checkpoint_interval):
            self._save_latest(trainer)

    def _rescaled(self, *, at_start: bool = False) -> bool:
        """Whether the number of environments has changed, and the run was saved since.

        A schedule has room for one change at a step. So where a resumed run had changed at this very step, what it is
        asked for waits for the end of its next iteration.
        """
        if not self._env_scaling.may_change(self.trainer):
            return False
        if not (at_start and self._resumed_from is not None and self._has_changed_here()):
            self._requests()
        return self._env_scaling.apply(self.trainer, save=self._save_changed)

    def _has_changed_here(self) -> bool:
        """Whether the last iteration was made in another number of environments than the next one will be."""
        n_envs = self._env_scaling.n_envs
        return bool(self._ranks.first("the metrics", lambda: last_row_has_other_n_envs(self._folder, n_envs)))

    def _save_changed(self) -> None:
        self._save_latest(self.trainer)
        if self._ranks.is_first:
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
        assert self._run.checkpoint is not None
        with reading(self._run.checkpoint):
            self.trainer.load_state_dict(saved["trainer"])
            if self._plateau is not None and saved["plateau"] is not None:
                self._plateau.load_state_dict(saved["plateau"])
            self.scoring.load_state_dict(saved, has_best=self._checkpoints.has_best())
            # With a score, a resumption trains on: its settings may ask for more.
            self._ended_early = self.scoring.is_due and saved.get("ended_early", False)

    def _announce(self) -> None:
        start = run_start(self._folder, self.trainer, self._env_scaling, n_ranks=self._ranks.size)
        self._listener.started(start)
        for sentence in opening_sentences(self.trainer, self._resumed_from):
            self._listener.say(sentence)
        if self._ranks.is_first:  # the other ranks have nobody who listens before the first iteration ends
            for sentence in self._sentences_of_workers():
                self._listener.say(sentence)

    def _sampled_resources(self, device: str) -> Resources:
        def worker_pids() -> Sequence[int]:
            envs = self._env_scaling.envs
            return envs.worker_pids if isinstance(envs, ParallelEnv) else ()

        threaded = self._config.run.parallel_start_method != "fork"
        return Resources(worker_pids=worker_pids, gpu=Gpu.of(device), threaded=threaded)

    def _sentences_of_workers(self) -> list[str]:
        """Which workers were replaced, and why environments have no lease."""
        envs = self._env_scaling.envs
        if not isinstance(envs, ParallelEnv):
            return []
        replaced = "Another took its place; the episodes that it lost count as truncated."
        return [*(f"{failure} {replaced}" for failure in envs.take_failures()), *envs.take_notices()]

    def _evaluate_late(self) -> None:
        """Do what a stop left undone: evaluate, and add the score to the metrics of that iteration."""
        path, step = self._folder / METRICS_FILE, self.trainer.global_step
        scores = self.scoring(self.trainer)
        if scores and self._ranks.is_first:
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
        is_latest = self._run.checkpoint == self._folder / LATEST_CHECKPOINT
        return saved is not None and is_latest and saved["config"] == settings_kept(self._config)


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
