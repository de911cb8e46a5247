"""`Run`: one training from settings to report, in a folder of its own.

It prints nothing. In the main thread it handles Ctrl-C while it trains, unless somebody does already, and puts the
handler back. So commands, notebooks, threads and services can all call it, and several of them at once.
"""

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.models.rl.algorithms.interruption import InterruptedBetweenSteps
from ml_pipeline.models.rl.policies.one_thread import begin_with_usual_threads
from ml_pipeline.monitoring.listener import RunEnd, RunListener
from ml_pipeline.monitoring.sink import MetricsSink
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, make_new_folder, report_folder
from ml_pipeline.runs.folder_claim import FolderClaim, check_not_written
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.ranks.relaunch import note_ranks
from ml_pipeline.runs.recording import Recording
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.runs.settings_file import StartedWith
from ml_pipeline.runs.stop import ON_REQUEST, StopRequest, take_stop_note
from ml_pipeline.runs.tasks import Task, make_task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training.training import Training
from ml_pipeline.runtime.interrupts import Interrupted

Ended = Literal["finished", "stopped", "failed"]

_FOLDER, _TRAINING = "the run folder", "training"  # what ranks come to together


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    scores: of the evaluations of this call, by the number of environment steps before them. best_score: the highest of
    the whole run; None before the first evaluation. report: the verdict in words, and report_path: in figures, among
    the other files of the report; None where the run did not finish, or its task writes none. error: what made it fail.
    """

    folder: Path
    status: Ended
    reason: str | None
    """Why it stopped, failed, or finished before all iterations."""
    global_step: int
    iterations: int
    best_score: float | None
    scores: Mapping[int, float]
    report: str | None = None
    report_path: Path | None = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        score = "no score yet" if self.best_score is None else f"best score {self.best_score:,.4g}"
        reason = "" if self.reason is None else f", {' '.join(self.reason.split())!r}"
        return f"{type(self).__name__}({self.status} in {self.folder}, step {self.global_step:,}, {score}{reason})"


class Run:
    """One training: environments, trainer, checkpoints, evaluation and report, in one folder.

    >>> import tempfile
    >>> from ml_pipeline import PPOConfig, Run, RunConfig, TrainConfig
    >>> folder = tempfile.TemporaryDirectory()
    >>> run = RunConfig(env_id="CartPole-v1", num_episodes=2, checkpoint_dir=Path(folder.name), vec_env="serial")
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
        sinks: Sequence[MetricsSink] = (),
        listener: RunListener | None = None,
        stop: StopRequest | None = None,
        envs: VectorEnv | None = None,
        ranks: RankContext | None = None,
        started_with: StartedWith | None = None,
    ) -> None:
        """config: every setting; its checkpoint_dir is the run folder, and None makes a new one in checkpoints/.
        task: what to learn; None: what `config` names, see `make_task`.
        checkpoint: one to continue, with the config of `resumed_config`.
                trust_checkpoint: open pickled states of environments beside it that no run of this user signed. sinks:
        where the metrics of each iteration go besides metrics.jsonl and monitor.csv; the caller closes them.
        listener: told what a person who watches wants to read. stop: ends the run once it is requested. envs: to train
        in, as many as `config` says, which stay open; None: made of the task, and closed. ranks: the processes that
        train together, this one alone by default, each by a Run with the same config, task and checkpoint; the first
        alone has the folder, and the others tell a listener and sinks nothing but the beginning and the end.
        started_with: the settings file that `config` comes from, by which `backtest --config` finds the run.
        """
        self.config = config
        self.task = make_task(config) if task is None else task
        self.checkpoint = checkpoint
        self.trust_checkpoint = trust_checkpoint
        self.sinks = tuple(sinks)
        self.listener = listener or RunListener()
        self.stop = stop or StopRequest()
        self.envs = envs
        self.ranks = ranks or RankContext()
        self.started_with = started_with
        self.result: RunResult | None = None
        """How the run ended, also where `train` raised; None before that, and where the run was refused."""

    def train(self) -> RunResult:
        """Train to the end, or until the stop request, and save; where the run finished, report on its best policy.

        What breaks a run down is raised: VectorEnvError where the environments fail, TrainingFailed where the numbers
        do, both with a note on how to resume, UserError where a file cannot be written. KeyboardInterrupt, from Ctrl-C
        in a notebook, is raised after saving. `result` then holds status "failed" or "stopped", and the error.

        Raises UserError, with the folder as it was, where the run is refused: settings, spaces, device, checkpoint or
        folder cannot be used, or another run writes the folder. Call it once; another `Run` continues a checkpoint.
        """
        if self.result is not None:
            raise UserError("This run has ended; continue it by another Run, with its latest.pt as checkpoint.")
        begin_with_usual_threads()
        if not self.ranks.is_first:
            return self._train_beside()
        claim = self.ranks.first(_FOLDER, self._claim_folder, send=lambda claim: str(claim.folder))
        take_stop_note(claim.folder)  # which a run that was killed left behind
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
                _result(training, claim.folder, status, reason),
                report=report,
                report_path=path if report is not None and (path := claim.folder / EVALUATION_FILE).is_file() else None,
            )
            _record(claim, self.result)
            return self.result
        except BaseException as error:
            self.result = self.result or _broken_off(training, claim.folder, error, trained=trained)
            with contextlib.suppress(UserError):  # the first error is the one to tell
                _record(claim, self.result)
            raise
        finally:
            claim.release()
            with closing(recording):  # also where a damaged checkpoint's values break even the telling of the end
                if self.result is not None:
                    recording.end(_end_of(self.result))

    def _train_beside(self) -> RunResult:
        """Train as a rank that has no folder: the first one writes, evaluates and reports."""
        folder = Path(self.ranks.first(_FOLDER, self._claim_folder))  # this rank need not see it
        config = _with_folder(self.config, folder)
        training = self.ranks.each(_TRAINING, lambda: Training(self, config, folder))
        with closing(training):
            note_ranks(self.ranks, folder)
            status, reason = training.train()
        self.listener.trained()
        self.result = _result(training, folder, status, reason)
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
                    f"{folder} holds a run already; go on with it by --resume {folder}, or name another folder."
                )
        except BaseException:
            claim.abandon()
            raise
        return claim

    def _report(self, training: Training, folder: Path) -> str:
        training.require_folder()
        training.load_best_policy()
        with report_folder(folder), training.policy.acting_threads():
            report = self.task.report(training.policy.act, folder)
            write_report_heading(folder, folder)
        return report


def _with_folder(config: TrainConfig, folder: Path) -> TrainConfig:
    return replace(config, run=replace(config.run, checkpoint_dir=folder))


def _result(training: Training, folder: Path, status: Ended, reason: str | None) -> RunResult:
    return RunResult(
        folder=folder,
        status=status,
        reason=reason,
        global_step=training.trainer.global_step,
        iterations=training.trainer.iteration,
        best_score=training.scoring.best_score,
        scores=dict(training.scoring.scores),
    )


def _broken_off(training: Training, folder: Path, error: BaseException, *, trained: bool) -> RunResult:
    status: Ended = "failed"
    reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {excerpt(str(error))}"
    if isinstance(error, KeyboardInterrupt):
        status = "stopped"
        by = str(error) if isinstance(error, Interrupted) else "Ctrl-C."
        if take_stop_note(folder):
            by = ON_REQUEST
        if trained:
            reason = f"{by} The training is saved, but its report is not written."
        elif isinstance(error, InterruptedBetweenSteps):
            reason = by
        else:
            reason = "Stopped without saving; what earlier checkpoints hold is whole."
    return replace(_result(training, folder, status, reason), error=error)


def _end_of(result: RunResult) -> RunEnd:
    return RunEnd(result.status, result.reason, result.global_step, result.best_score, result.folder)


def _record(claim: FolderClaim, result: RunResult) -> None:
    claim.end(
        result.status,
        result.reason,
        global_step=result.global_step,
        iterations=result.iterations,
        best_score=result.best_score,
    )
