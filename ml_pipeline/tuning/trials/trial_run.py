"""Trains a trial of a study: one run, or one run per seed or fold, in the study's folder.

It uses Optuna only through `Trial`, and neither reads nor writes the storage: `Worker` asks for trials and tells their
results. `TrialProgress` reports the evaluations of a trial's runs to the trial, and stops the run if it is pruned.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import OF_LAUNCH, RunConfig
from ml_pipeline.models.rl.algorithms.interruption import InterruptedBetweenSteps
from ml_pipeline.models.rl.core.arguments import measuring_once
from ml_pipeline.models.rl.ranks import RankLost
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.sinks import METRICS_FILE, STEP, EpisodeRecord, read_lines
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.recording import RunResult
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.tuning.config import ObjectiveConfig
from ml_pipeline.tuning.study_files import trial_folder
from ml_pipeline.tuning.study_identity import warnings_of_task
from ml_pipeline.tuning.trials.trial_ranks import RankFailed, TrialRanks
from ml_pipeline.tuning.trials.trial_task import TaskSource, TrialTask

EVALUATIONS = 10
"""Evaluations of a run if the settings do not set their interval; pruners decide by them."""
_LONGEST_REASON = 2_000

TrialState = Literal["complete", "pruned", "stopped", "failed", "lost", "impossible"]


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """How a trial ended: "lost" if one of its ranks was lost, so that it can continue from its checkpoint.

    value: the median over its runs so far of the best score of each; None before the first evaluation. reason: why it
    did not complete. folders: of all its runs, relative to the study's folder. global_step: the sum over its runs.
    n_evaluations: the sum over its runs; the best checkpoints were chosen from them.
    validation_sharpe: annualized, of the best checkpoints, the median over the runs; None if the trial did not
    complete, has no returns, or they do not vary.
    """

    state: TrialState
    value: float | None = None
    reason: str | None = None
    folders: tuple[str, ...] = ()
    global_step: int = 0
    n_evaluations: int = 0
    validation_sharpe: float | None = None
    feature_warnings: tuple[str, ...] = ()
    """Sentences about features of its runs that may use later data."""


SCORE = "eval/score"


class Trial(Protocol):
    """The part of an `optuna.Trial` that `TrialRuns` needs."""

    @property
    def number(self) -> int: ...

    def report(self, value: float, step: int) -> None: ...

    def should_prune(self) -> bool: ...


class TrialProgress(RunListener):
    """A sink and a listener of each of a trial's runs in turn.

    It reports the median over the runs so far of the best score of each. The step is the environment steps so far,
    rounded down to a multiple of `report_every`: pruners compare trials that reported at the same step, and trials with
    different rollout lengths are evaluated at different steps.
    """

    def __init__(self, trial: Trial, *, n_units: int, report_every: int) -> None:
        """n_units: number of runs of the trial. report_every: environment steps, the same for all trials of a study."""
        self._trial = trial
        self._units_left = n_units
        self._report_every = report_every
        self._bests: list[float] = []
        self._steps_before = 0  # of the runs before this one
        self._timesteps = 0  # of this run
        self._last_reported = 0
        self.stop = StopRequest()
        """The stop request of the current run."""
        self.n_evaluations = 0
        """Of all runs, including those before an interruption. Not all are reported, but each may be the best."""
        self.pruned: str | None = None
        """Why the trial ends, once it is to be pruned."""
        self.error: Exception | None = None
        """An error that the trial raised; nothing more is reported to it then."""

    def begin_run(self, folder: Path, *, timesteps: int) -> None:
        """The next run of the trial, of this many environment steps, is about to start or continue in this folder."""
        self._folder = folder
        self._steps_before += self._timesteps
        self._timesteps = timesteps
        self._units_left -= 1
        self._bests.append(-math.inf)
        self.stop = StopRequest()

    def started(self, start: RunStart) -> None:
        """Report the earlier evaluations of a run that continues."""
        if not start.first_step:
            return
        for line in read_lines(self._folder / METRICS_FILE):
            metrics = _object(line)
            if SCORE in metrics and isinstance(step := metrics.get(STEP), int) and step <= start.first_step:
                self.n_evaluations += 1
                score = metrics[SCORE]
                self._report(-math.inf if score is None else score, step)  # JSON has no infinity

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        if SCORE not in metrics:
            return
        self.n_evaluations += 1
        if self.error is not None:
            return
        step = int(metrics[STEP])
        reported = self._report(metrics[SCORE], step)
        if not reported or (step >= self._timesteps and not self._units_left):
            return  # pruning would save nothing
        if self._told(self._trial.should_prune):
            value = statistics.median(self._bests)
            self.pruned = f"Pruned after {self._steps_before + step:,} steps, at {value:,.4g}."
            self.stop.request(self.pruned)

    def close(self) -> None:
        """There is nothing to finish."""

    def _report(self, score: float, step: int) -> bool:
        """Report a score, at most one per step; return whether it was reported."""
        self._bests[-1] = max(self._bests[-1], score)
        done = self._steps_before + min(step, self._timesteps)
        at = done // self._report_every * self._report_every
        if at <= self._last_reported or self.error is not None:
            return False
        self._last_reported = at
        self._told(lambda: self._trial.report(statistics.median(self._bests), at))
        return self.error is None

    def _told(self, call: Any) -> Any:
        """The result of the call. If it fails, as when the storage is unavailable, the run is stopped and saved."""
        try:
            return call()
        except Exception as error:
            self.error = error
            self.stop.request(f"An evaluation could not be reported to the trial: {error}")
            return None


def _object(line: str) -> Mapping[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


class TrialRuns:
    """Trains trials of a study in this process, one at a time; the market stays loaded between them.

    If trials have several processes, the others wait for the next trial until `close`.
    """

    def __init__(self, base: Mapping[str, Any], objective: ObjectiveConfig, study_folder: Path) -> None:
        """base: the settings that all trials share: those that the user set, without defaults.

        Raises UserError if trials with these settings cannot be scored by the objective.
        """
        objective.check(base)
        self._base = layered(base, objective.settings)
        self._objective = objective
        self._study_folder = study_folder.absolute()
        self._tasks = TaskSource()
        self._ranks = TrialRanks()
        self._report_every = report_interval(self._base)

    def close(self) -> None:
        """End the other ranks of the trials. May be called twice."""
        self._ranks.close()

    def folders(self, number: int, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the run folders of a new trial.

        Raises UserError if its settings are impossible.
        """
        units = self._objective.units(train_config(layered(self._base, settings)))
        return tuple(trial_folder(self._study_folder, number, unit.name).name for unit in units)

    def train(
        self,
        trial: Trial,
        settings: Mapping[str, Any],
        *,
        folders: Sequence[str] | None = None,
        changes: Mapping[str, Any] | None = None,
        stop: StopRequest,
        say: Callable[[str], None],
    ) -> TrialOutcome:
        """Train the runs of a trial in order, and report their evaluations to it; prune it if it should be pruned.

        A run that is pruned or stopped ends before its next step, is saved, and can be resumed. folders: of an earlier
        trial with these settings, whose runs continue from their checkpoints, bit for bit, with `changes` to their
        settings. An error in a run makes the outcome "failed". An error of the trial itself, as when its storage is
        unavailable, is raised after the run was saved, and so is a second Ctrl-C.
        """
        try:
            every = self._settings_of_runs(settings)
        except UserError as error:
            return TrialOutcome(state="impossible", reason=str(error))
        names = tuple(folders) if folders else self.folders(trial.number, settings)
        progress = TrialProgress(trial, n_units=len(every), report_every=self._report_every)
        ended = _Ended(names, progress)
        for its_settings, name in zip(every, names, strict=True):
            if stop.requested:
                return ended.outcome("stopped", stop.reason)
            try:
                config, checkpoint = self._start_of(name, its_settings, changes or {}, resumes=folders is not None)
                self._ranks.start(config.run.n_processes)  # they import torch while the market is loaded
                task = self._tasks.task(config)
            except UserError as error:
                return ended.outcome("failed", str(error))
            if checkpoint is not None:
                say(f"Trial {trial.number} continues in {name}.")
            its_cost = self._tasks.step_cost(config)
            progress.begin_run(self._study_folder / name, timesteps=config.timesteps)
            ended.warnings.update(dict.fromkeys(warnings_of_task(task)))
            its_task = TrialTask(task, is_resumed=checkpoint is not None)
            make_run = partial(
                Run, config, its_task, checkpoint=checkpoint, sinks=[progress], listener=progress, stop=progress.stop
            )
            with stop.told_to(lambda: progress.stop.request(str(stop.reason))), measuring_once(its_cost):
                state, reason, result = _trained(make_run, self._ranks.training(config, task, checkpoint))
            if progress.error is not None:
                raise progress.error
            if result is not None:
                ended.add(result, its_task)
            if progress.pruned is not None and (state == "stopped" or name != names[-1]):
                return ended.outcome("pruned", progress.pruned)
            if state != "complete":
                return ended.outcome(state, reason)
        return ended.outcome("complete", None)

    def _start_of(
        self, name: str, settings: Mapping[str, Any], changes: Mapping[str, Any], *, resumes: bool
    ) -> tuple[TrainConfig, Path | None]:
        """The settings of a run, and the checkpoint from which it continues, if any. Raises UserError if invalid."""
        folder = self._study_folder / name
        checkpoint = folder / LATEST_CHECKPOINT
        if resumes and checkpoint.is_file():
            of_launch = {each: settings[each] for each in OF_LAUNCH if each in settings}  # not in checkpoints
            return resumed_config(checkpoint, {**of_launch, **changes}), checkpoint
        return train_config(layered(settings, changes, {"checkpoint_dir": folder})), None

    def _settings_of_runs(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The non-default settings of each run of a trial. Raises UserError if they are impossible."""
        given = layered(self._base, settings)
        config = train_config(given)
        if config.run.env_id is None:
            given = layered(given, self._splits_of_study(config.trading))
            config = train_config(given)
        if "eval_interval" not in given:
            given["eval_interval"] = max(1, self._report_every // (config.run.n_envs * config.ppo.n_steps))
        every = [layered(given, unit.settings) for unit in self._objective.units(config)]
        for each in every:
            train_config(each)
        return every

    def _splits_of_study(self, trading: TradingConfig) -> dict[str, float]:
        """Fractions that give a trial the study's splits for any features and window, so that none sees the test."""
        usual = TradingConfig()
        of_study = {name: self._base.get(name, getattr(usual, name)) for name in ("features", "window")}
        try:
            return self._tasks.fractions_as_of(replace(trading, **of_study), trading)
        except UserError:  # unusable data or features, which the run reports
            return {}


def report_interval(base: Mapping[str, Any]) -> int:
    """Environment steps between two reports of a trial, the same for all trials of a study.

    >>> report_interval({"total_timesteps": 50_000})
    5000
    >>> report_interval({"n_envs": 4, "n_steps": 100, "eval_interval": 2})
    800
    """
    usual: dict[str, Any] = {**vars(RunConfig()), **vars(PPOConfig())}
    values = layered(usual, base)
    rollout = values["n_envs"] * values["n_steps"]
    if "eval_interval" in base:
        return int(max(1, values["eval_interval"] * rollout))
    timesteps = values["total_timesteps"] or values["iterations"] * rollout
    return int(max(1, timesteps // EVALUATIONS))


def _trained(
    make_run: Callable[..., Run], training: AbstractContextManager[RankContext | None]
) -> tuple[TrialState, str | None, RunResult | None]:
    """How a run ended, why it did not finish, and its result if it began. training: the ranks of the run while it
    trains."""
    run: Run | None = None
    try:
        with training as ranks:
            run = make_run(ranks=ranks)
            result = run.train()
    except (Exception, InterruptedBetweenSteps) as error:
        so_far = None if run is None else run.result
        return _state_after(error), _reason_of(error, so_far), so_far
    return ("complete", None, result) if result.status == "finished" else ("stopped", result.reason, result)


def _state_after(error: BaseException) -> TrialState:
    if isinstance(error, InterruptedBetweenSteps):
        return "stopped"
    return "lost" if isinstance(error, RankLost) else "failed"


def _reason_of(error: BaseException, result: RunResult | None) -> str:
    reason = None
    if result is not None and not isinstance(error, RankLost | RankFailed):  # which know more than the run
        reason = result.reason
    return excerpt(reason or str(error) or type(error).__name__, _LONGEST_REASON)


class _Ended:
    """The runs of a trial that have ended."""

    def __init__(self, folders: tuple[str, ...], progress: TrialProgress) -> None:
        self._folders = folders
        self._progress = progress
        self._scores: list[float] = []
        self._sharpes: list[float] = []
        self._global_step = 0
        self.warnings: dict[str, None] = {}

    def add(self, result: RunResult, task: TrialTask) -> None:
        self._global_step += result.global_step
        if result.best_score is not None:
            self._scores.append(result.best_score)
        if task.returns is not None:
            self._sharpes.append(task.returns.sharpe)

    def outcome(self, state: TrialState, reason: str | None) -> TrialOutcome:
        value = statistics.median(self._scores) if self._scores else None
        sharpe = statistics.median(self._sharpes) if self._sharpes and state == "complete" else math.nan
        if state == "complete" and (value is None or math.isnan(value)):
            state, reason = "failed", "Its score is not a number."
        return TrialOutcome(
            state=state,
            value=value,
            reason=reason,
            folders=self._folders,
            global_step=self._global_step,
            n_evaluations=self._progress.n_evaluations,
            validation_sharpe=None if math.isnan(sharpe) else sharpe,
            feature_warnings=tuple(self.warnings),
        )
