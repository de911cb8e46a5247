"""`Run`: one training from settings to report, in its run folder.

It prints nothing. While it trains in the main thread it handles Ctrl-C, unless a handler is already set, and restores
the handler afterwards. So commands, notebooks, threads and services can all call it, also concurrently.
"""

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.wording import score_unit
from ml_pipeline.models.rl.algorithms.callbacks import CallbackFailed, Callbacks, StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.interruption import InterruptedBetweenSteps
from ml_pipeline.models.rl.algorithms.trainer import Every, Statistics, Trainer, is_due
from ml_pipeline.models.rl.policies.threads_and_device import begin_with_usual_threads, choose_device
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.monitoring.resources import Gpu, Resources
from ml_pipeline.monitoring.sinks import METRICS_FILE, MetricsFile, MetricsSink, Sinks
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.runs.checkpoint import Checkpoints, reading, resume_hint, settings_kept
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT, make_new_folder, report_folder
from ml_pipeline.runs.folder_claim import FolderClaim, check_not_written
from ml_pipeline.runs.initial_policy import load_initial_policy
from ml_pipeline.runs.ranks.context import RankContext, of_all_ranks, share_stop, stops_shared
from ml_pipeline.runs.ranks.relaunch import note_ranks
from ml_pipeline.runs.ranks.start import require_same_spaces
from ml_pipeline.runs.recording import (
    Ended,
    Recording,
    RunResult,
    begin_files,
    last_row_has_other_n_envs,
    opening_sentences,
    run_start,
    write_settings,
)
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.runs.requests import RequestHandling
from ml_pipeline.runs.settings_file import StartedWith
from ml_pipeline.runs.stop import ON_REQUEST, StopRequest, take_stop_note
from ml_pipeline.runs.tasks import Task, make_task, make_trainer
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training.env_scaling import EnvScaling, n_envs_in
from ml_pipeline.runs.training.scoring import Scoring
from ml_pipeline.runs.training.worker_scaling import WorkerScaling
from ml_pipeline.runtime.interrupts import Interrupted
from ml_pipeline.runtime.plain_data import to_plain
from ml_pipeline.runtime.user_code import call_user_code, import_by_name

_FOLDER, _TRAINING = "the run folder", "training"  # names of collective calls


class Run:
    """One training: environments, trainer, checkpoints, evaluation and report, in one folder.

    >>> import tempfile
    >>> from ml_pipeline import PPOConfig, Run, RunConfig, TrainConfig
    >>> folder = tempfile.TemporaryDirectory()
    >>> run = RunConfig(env_id="CartPole-v1", iterations=2, checkpoint_dir=Path(folder.name), vec_env="serial")
    >>> config = TrainConfig(run=run, ppo=PPOConfig(n_steps=64, minibatch_size=64))
    >>> result = Run(config).train()
    >>> result.status, result.global_step, (result.folder / "best.pt").is_file()
    ('finished', 128, True)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task | None = None,
        *,
        checkpoint: Path | None = None,
        trust_checkpoint: bool = False,
        callbacks: Sequence[object] = (),
        sinks: Sequence[MetricsSink] = (),
        listener: RunListener | None = None,
        stop: StopRequest | None = None,
        envs: VectorEnv | None = None,
        ranks: RankContext | None = None,
        started_with: StartedWith | None = None,
    ) -> None:
        """config: every setting; its checkpoint_dir is the run folder, and None makes a new one in checkpoints/.
        task: what to learn; None: the task named in `config`, see `make_task`.
        checkpoint: one to continue, with the config of `resumed_config`.
        trust_checkpoint: also open its pickled environment states if no run of this user signed them.
        callbacks: objects as for `PPOTrainer.train`, besides those that `config` names; pass them again to resume.
        sinks: receive the metrics of each iteration, besides metrics.jsonl and monitor.csv; the caller closes them.
        listener: receives the progress to show to a person. stop: ends the run once requested.
        envs: to train in, as many as in `config`, left open; None: made from the task, and closed.
        ranks: the processes that train together, each in a Run with the same config, task and checkpoint; by default
        this process alone. Only the first has the folder; the others report only start and end.
        started_with: the settings file of `config`, by which `backtest --config` finds the run.
        """
        self.config = config
        self.task = make_task(config) if task is None else task
        self.checkpoint = checkpoint
        self.trust_checkpoint = trust_checkpoint
        self.callbacks = tuple(callbacks)
        self.sinks = tuple(sinks)
        self.listener = listener or RunListener()
        self.stop = stop or StopRequest()
        self.envs = envs
        self.ranks = ranks or RankContext()
        self.started_with = started_with
        self.result: RunResult | None = None
        """How the run ended, even if `train` raised; None before that, or if the run was refused."""

    def train(self) -> RunResult:
        """Train to the end or a stop request, and save; if the run finished, report on its best policy.

        Raises VectorEnvError if the environments fail and TrainingFailed if the numbers do, both with a note on how to
        resume; UserError if a file cannot be written; KeyboardInterrupt, from Ctrl-C in a notebook, after saving.
        `result` then holds status "failed" or "stopped", and the error.

        Raises UserError if settings, spaces, device, checkpoint or folder are unusable, or another run writes the
        folder; the folder is left unchanged. Call it once; another `Run` continues a checkpoint.
        """
        if self.result is not None:
            raise UserError("This run has ended; to continue it, create another Run with its latest.pt as checkpoint.")
        begin_with_usual_threads()
        if not self.ranks.is_first:
            return self._train_beside()
        claim = self.ranks.first(_FOLDER, self._claim_folder, send=lambda claim: str(claim.folder))
        take_stop_note(claim.folder)  # left by a killed run
        config = _with_folder(self.config, claim.folder)
        with contextlib.ExitStack() as undo:
            undo.callback(claim.abandon)

            def accept() -> tuple[Recording, Training]:
                recording = Recording(config, claim.folder, self.listener)
                undo.enter_context(closing(recording))
                return recording, Training(self, config, claim.folder, recording)

            recording, training = self.ranks.each(_TRAINING, accept)
            undo.enter_context(closing(training))
            note_ranks(self.ranks, claim.folder)
            undo.pop_all()
        trained = False
        try:
            with closing(training):
                if self.started_with is not None:
                    self.started_with.record(claim.folder)
                status, reason = training.train()
            trained = True
            if take_stop_note(claim.folder) and status == "stopped":
                reason = ON_REQUEST
            recording.trained(status)
            recording.listener.trained()
            report = self._report(training, claim.folder) if status == "finished" else None
            self.result = replace(
                training.result(status, reason),
                report=report,
                report_path=path if report is not None and (path := claim.folder / EVALUATION_FILE).is_file() else None,
            )
            _record(claim, self.result)
            return self.result
        except BaseException as error:
            self.result = self.result or _broken_off(training, claim.folder, error, trained=trained)
            with contextlib.suppress(UserError):  # report the first error
                _record(claim, self.result)
            raise
        finally:
            claim.release()
            with closing(recording):  # even if a damaged checkpoint's values break recording.end
                if self.result is not None:
                    recording.end(self.result)

    def _train_beside(self) -> RunResult:
        """Train as a rank without the folder: the first rank writes, evaluates and reports."""
        folder = Path(self.ranks.first(_FOLDER, self._claim_folder))  # this rank may lack access
        config = _with_folder(self.config, folder)
        training = self.ranks.each(_TRAINING, lambda: Training(self, config, folder))
        with closing(training):
            note_ranks(self.ranks, folder)
            status, reason = training.train()
        self.listener.trained()
        self.result = training.result(status, reason)
        return self.result

    def _claim_folder(self) -> FolderClaim:
        checkpoint = self.checkpoint
        given = self.config.run.checkpoint_dir or (checkpoint and checkpoint.parent)
        folder = given.absolute() if given else make_new_folder(self.task.name)
        claim = FolderClaim(folder, made=given is None)
        try:
            if checkpoint is not None and checkpoint.absolute().parent != folder:
                check_not_written(checkpoint.absolute().parent)
            elif checkpoint is not None:
                return claim
            if (folder / LATEST_CHECKPOINT).exists():
                raise UserError(
                    f"{folder} already holds a run; continue it with --resume {folder}, or choose another folder."
                )
        except BaseException:
            claim.abandon()
            raise
        return claim

    def _report(self, training: "Training", folder: Path) -> str:
        training.require_folder()
        training.load_best_policy()
        with report_folder(folder), training.policy.acting_threads():
            report = self.task.report(training.policy.act, folder)
            write_report_heading(folder, folder)
        return report


class Training:
    """Trains, evaluates, saves and rescales in one folder; `close` closes the environments and the files.

    After each iteration: the callbacks (early stopping, the user's, then resources and workers), the evaluation if due,
    the metrics of both to the sinks, then a change of the number of environments or the checkpoint if due.
    """

    def __init__(self, run: Run, config: TrainConfig, folder: Path, recording: Recording | None = None) -> None:
        """config: the settings of the run, with its folder. recording: None except on the first rank.

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
        self._checkpoints = Checkpoints(folder, run.task.state, say, ranks=ranks)
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
        self._callbacks = self._make_callbacks()
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
            self.trainer.attach(self._callbacks)
            # Change no file of an earlier run before every check that may refuse this one.
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
            resources = Resources(
                worker_pids=lambda: self._env_scaling.worker_pids,
                gpu=Gpu.of(device),
                threaded=settings.parallel_start_method != "fork",
            )
            self._resources = stack.enter_context(closing(resources))
            self._resumed_from = saved
            self._closing = stack.pop_all()

    def close(self) -> None:
        """Close the environments and the files; the policy can still act. May be called twice."""
        self._closing.close()

    def train(self) -> tuple[Literal["finished", "stopped"], str | None]:
        """Train to the end or to a stop, and save; return how it ended, and why if before all iterations.

        Raises VectorEnvError or TrainingFailed, with a note on how to resume, if training fails, and
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
            self._save_latest(trainer)  # so a run killed before its first checkpoint can resume
        try:
            with resume_hint(self._folder, lambda: trainer.global_step > 0), stop.told_to(trainer.request_stop):
                trainer.train(
                    callbacks=self._callbacks,
                    evaluate=Every(self._config.run.eval_interval, self.scoring),
                    save=Every(1, self._rescale_or_save),  # after the trainer has written the metrics to the sinks
                    progress=False,
                )
        except (InterruptedBetweenSteps, CallbackFailed):  # the iteration is over
            self._save_latest(trainer)
            raise
        share_stop(self._ranks, stop)
        if not trainer.finished and not stop.requested:
            self._ended_early = True
            self._listener.say(self._early_reason())
            self._callbacks.after_evaluation(trainer, self.scoring(trainer))
        if self.scoring.is_due or not trainer.finished:
            self._save_latest(trainer)
        self._callbacks.check(self._ranks.group)

    def _make_callbacks(self) -> Callbacks:
        """Early stopping, then the user's."""
        run = self._config.run
        early = [
            *([] if run.stop_at_return is None else [StopAtReturn(run.stop_at_return)]),
            *([] if run.stop_on_plateau is None else [StopOnPlateau(run.stop_on_plateau)]),
        ]
        named = [made_callback(name) for name in run.callback]
        return Callbacks([*early, *named, *self._run.callbacks], after_iteration=self._after_iteration)

    def _after_iteration(self, trainer: Trainer, statistics: Statistics) -> dict[str, float]:
        """What differs from rank to rank, so that it is combined here: the metrics of resources and workers."""
        self.require_folder()
        metrics: dict[str, float] = {}
        for hook in (self._resources, self._worker_scaling):
            metrics.update(hook(trainer, statistics) or {})
        sentences = self._env_scaling.take_sentences()
        metrics, sentences = of_all_ranks(self._ranks, metrics, sentences)
        for sentence in sentences:
            self._listener.say(sentence)
        return metrics

    def _rescale_or_save(self, trainer: Trainer) -> None:
        """Apply a change of the number of environments, which saves, or save if a checkpoint is due."""
        run = self._config.run
        if is_due(trainer, run.eval_interval):
            # A listener, such as a pruner, may stop the run on a score: then stop before the next step of any rank.
            share_stop(self._ranks, self._run.stop)
        if not self._rescaled() and is_due(trainer, run.checkpoint_interval):
            self._save_latest(trainer)

    def _rescaled(self, *, at_start: bool = False) -> bool:
        """Apply a due change of the number of environments and save; return whether there was one.

        A schedule holds one change per step. So if a resumed run had already changed at this step, a request waits for
        the end of its next iteration.
        """
        if not self._env_scaling.may_change(self.trainer):
            return False
        if not (at_start and self._resumed_from is not None and self._has_changed_here()):
            self._requests()
        return self._env_scaling.apply(self.trainer, save=self._save_changed)

    def _has_changed_here(self) -> bool:
        """Whether the last iteration used another number of environments than the next one will."""
        n_envs = self._env_scaling.n_envs
        return bool(self._ranks.first("the metrics", lambda: last_row_has_other_n_envs(self._folder, n_envs)))

    def _save_changed(self) -> None:
        self._save_latest(self.trainer)
        if self._ranks.is_first:
            write_settings(self._folder, self._env_scaling.config)

    def _early_reason(self) -> str:
        return f"Training ends early, after iteration {self.trainer.iteration}."

    def load_best_policy(self) -> None:
        """Load the best weights into the policy; without best.pt it keeps the last ones."""
        self._checkpoints.load_best(self.policy)

    def require_folder(self) -> None:
        """Raise UserError if the run folder was deleted, moved or replaced."""
        self._checkpoints.require_folder()

    def _restore(self, saved: Mapping[str, Any]) -> None:
        assert self._run.checkpoint is not None
        with reading(self._run.checkpoint):
            self.trainer.load_state_dict(self._with_callbacks(saved))
            self.scoring.load_state_dict(saved, has_best=self._checkpoints.has_best())
            # With a score, a resumed run keeps training: its settings may set a new target.
            self._ended_early = self.scoring.is_due and saved["ended_early"]

    def _with_callbacks(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The trainer's state without those callbacks that changed settings leave out."""
        known = saved["trainer"].get("callbacks", {})
        states = dict(known.get("states", {}))
        if saved.get("plateau") is not None:  # of an earlier version
            states["StopOnPlateau"] = to_plain(saved["plateau"])
        left_out = {"StopOnPlateau"}
        if saved["config"].get("callback", []) != [*self._config.run.callback]:
            left_out |= {*states}
        kept = {name: state for name, state in states.items() if name not in left_out or name in self._callbacks.names}
        return {**saved["trainer"], "callbacks": {**known, "states": kept}}

    def _announce(self) -> None:
        start = run_start(self._folder, self.trainer, self._env_scaling, n_ranks=self._ranks.size)
        self._listener.started(start)
        for sentence in opening_sentences(self.trainer, self._resumed_from):
            self._listener.say(sentence)
        if self._ranks.is_first:  # those of other ranks are gathered after each iteration
            for sentence in self._env_scaling.take_sentences():
                self._listener.say(sentence)

    def _evaluate_late(self) -> None:
        """Run the evaluation that a stop skipped, and add the score to that iteration's metrics."""
        path, step = self._folder / METRICS_FILE, self.trainer.global_step
        scores = self.scoring(self.trainer)
        self._callbacks.after_evaluation(self.trainer, scores)
        scores.update(self._callbacks.take_metrics())
        if scores and self._ranks.is_first:
            with ExitStack() as stack:
                metrics = self._metrics or stack.enter_context(closing(MetricsFile(path, resume_step=step)))
                metrics.add_to_last(step, scores)
        self._save_latest(self.trainer)
        self._callbacks.check(self._ranks.group)

    def _save_latest(self, trainer: Trainer) -> None:
        self._save(trainer, LATEST_CHECKPOINT)

    def _save(self, trainer: Trainer, name: str) -> None:
        state = {
            "config": settings_kept(self._env_scaling.config),
            "n_envs": self._env_scaling.n_envs,
            "ended_early": self._ended_early,
            **self.scoring.state_dict(),
        }
        self._checkpoints.save(name, trainer, state)

    def _is_latest(self, saved: Mapping[str, Any] | None) -> bool:
        """Whether the resumed checkpoint is latest.pt, with the same settings as now."""
        is_latest = self._run.checkpoint == self._folder / LATEST_CHECKPOINT
        return saved is not None and is_latest and saved["config"] == settings_kept(self._config)

    def result(self, status: Ended, reason: str | None) -> RunResult:
        """How the run ended, without its report."""
        return RunResult(
            folder=self._folder,
            status=status,
            reason=reason,
            global_step=self.trainer.global_step,
            iterations=self.trainer.iteration,
            best_score=self.scoring.best_score,
            scores=dict(self.scoring.scores),
        )


def made_callback(name: str) -> Any:
    """An object of a user's class. Raises UserError if it cannot be imported or made."""
    found = import_by_name(name)
    if not isinstance(found, type):
        raise UserError(f"callback {name} must be a class without arguments, but is a {type(found).__name__}.")
    return call_user_code(name, lambda made: made(), found)


def _with_folder(config: TrainConfig, folder: Path) -> TrainConfig:
    return replace(config, run=replace(config.run, checkpoint_dir=folder))


def _broken_off(training: Training, folder: Path, error: BaseException, *, trained: bool) -> RunResult:
    status: Ended = "failed"
    reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {excerpt(str(error))}"
    if isinstance(error, KeyboardInterrupt):
        status = "stopped"
        by = str(error) if isinstance(error, Interrupted) else "Ctrl-C."
        if take_stop_note(folder):
            by = ON_REQUEST
        if trained:
            reason = f"{by} The training is saved, but the report was not written."
        elif isinstance(error, InterruptedBetweenSteps):
            reason = by
        else:
            reason = "Stopped without saving; earlier checkpoints are intact."
    return replace(training.result(status, reason), error=error)


def _record(claim: FolderClaim, result: RunResult) -> None:
    claim.end(
        result.status,
        result.reason,
        global_step=result.global_step,
        iterations=result.iterations,
        best_score=result.best_score,
    )
