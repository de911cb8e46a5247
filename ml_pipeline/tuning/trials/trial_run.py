"""A trial of a study as what it is: one run, or one for each seed or fold, below the study's folder.

It knows of Optuna no more than `Trial` says, and reads and writes no storage: who asks for trials also tells of them.
`TrialProgress` reports the evaluations of a trial's runs to the trial, and stops the run that is to be pruned.
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
"""Of a run, where the settings do not say how often to evaluate: what pruners can decide by."""
_LONGEST_REASON = 2_000

TrialState = Literal["complete", "pruned", "stopped", "failed", "lost", "impossible"]


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """How a trial ended: "lost" where one of its ranks was, so that it can go on from its checkpoint.

    value: the median over its runs so far of the best score of each; None before the first evaluation. reason: why it
    did not complete. folders: of all its runs, as paths from the study's folder. global_step: of its runs together.
    n_evaluations: of its runs together; the best checkpoints were chosen among so many.
    validation_sharpe: annualized, of the best checkpoints, the median over the runs; None where the trial did not
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
    """Sentences about features of its runs that may see ahead."""


SCORE = "eval/score"


class Trial(Protocol):
    """What `TrialRuns` needs of a trial; an `optuna.Trial` is one."""

    @property
    def number(self) -> int: ...

    def report(self, value: float, step: int) -> None: ...

    def should_prune(self) -> bool: ...


class TrialProgress(RunListener):
    """A sink and a listener of each of a trial's runs in turn.

    Reported is the median over the runs so far of the best score of each. The step is the environment steps so far,
    rounded down to a multiple of `report_every`: pruners compare the trials that reported at one step, and trials with
    rollouts of other lengths are evaluated at other steps.
    """

    def __init__(self, trial: Trial, *, n_units: int, report_every: int) -> None:
        """n_units: how many runs the trial has. report_every: environment steps, the same for all trials of a study."""
        self._trial = trial
        self._units_left = n_units
        self._report_every = report_every
        self._bests: list[float] = []
        self._steps_before = 0  # of the runs before this one
        self._timesteps = 0  # of this run
        self._last_reported = 0
        self.stop = StopRequest()
        """Of the run under way."""
        self.n_evaluations = 0
        """Of all runs, those before an interruption included. Not all are reported, but each may be the best."""
        self.pruned: str | None = None
        """Why the trial ends, once it is to be pruned."""
        self.error: Exception | None = None
        """What the trial raised; it is told nothing more."""

    def begin_run(self, folder: Path, *, timesteps: int) -> None:
        """The next run of the trial, of this many environment steps, is about to begin or to go on in this folder."""
        self._folder = folder
        self._steps_before += self._timesteps
        self._timesteps = timesteps
        self._units_left -= 1
        self._bests.append(-math.inf)
        self.stop = StopRequest()

    def started(self, start: RunStart) -> None:
        """Report what a run that goes on was evaluated at before."""
        if not start.first_step:
            return
        for line in read_lines(self._folder / METRICS_FILE):
            metrics = _object(line)
            if SCORE in metrics and isinstance(step := metrics.get(STEP), int) and step <= start.first_step:
                self.n_evaluations += 1
                score = metrics[SCORE]
                self._report(-math.inf if score is None else score, step)  # the file knows no infinity

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        if SCORE not in metrics:
            return
        self.n_evaluations += 1
        if self.error is not None:
            return
        step = int(metrics[STEP])
        reported = self._report(metrics[SCORE], step)
        if not reported or (step >= self._timesteps and not self._units_left):
            return  # nothing is left to be saved by pruning
        if self._told(self._trial.should_prune):
            value = statistics.median(self._bests)
            self.pruned = f"Pruned after {self._steps_before + step:,} steps, at {value:,.4g}."
            self.stop.request(self.pruned)

    def close(self) -> None:
        """There is nothing to finish."""

    def _report(self, score: float, step: int) -> bool:
        """Whether the trial was told of the score; it is told of one at each step."""
        self._bests[-1] = max(self._bests[-1], score)
        done = self._steps_before + min(step, self._timesteps)
        at = done // self._report_every * self._report_every
        if at <= self._last_reported or self.error is not None:
            return False
        self._last_reported = at
        self._told(lambda: self._trial.report(statistics.median(self._bests), at))
        return self.error is None

    def _told(self, call: Any) -> Any:
        """What the call returns. One that fails, as where the storage is away, stops the run, which is saved."""
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
    """Trains trials of a study in this process, one after another; the market stays loaded between them.

    Where trials have several processes, the others wait for the next trial until `close`.
    """

    def __init__(self, base: Mapping[str, Any], objective: ObjectiveConfig, study_folder: Path) -> None:
        """base: the settings that all trials share: those that the user named, not the defaults of the others.

        Raises UserError where trials of these settings cannot be judged by the objective.
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
        """The names of the run folders of a trial that begins anew.

        Raises UserError where its settings are impossible.
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
        """Train the runs of a trial, one after another, and report their evaluations to it; prune it where it asks to.

        A run that is pruned or stopped ends before its next step, is saved, and can be resumed. folders: of an earlier
        trial with these settings, whose runs go on where their checkpoints are, bit for bit, with `changes` to their
        settings. What breaks a run down makes the outcome "failed". What the trial itself raises, as where its storage
        is away, is raised here after the run was saved, and so is a second Ctrl-C.
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
                self._ranks.start(config.run.n_processes)  # which import torch while the market is loaded
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
        """The settings of a run, and the checkpoint where it goes on, if there is one. Raises UserError as those do."""
        folder = self._study_folder / name
        checkpoint = folder / LATEST_CHECKPOINT
        if resumes and checkpoint.is_file():
            of_launch = {each: settings[each] for each in OF_LAUNCH if each in settings}  # which no checkpoint holds
            return resumed_config(checkpoint, {**of_launch, **changes}), checkpoint
        return train_config(layered(settings, changes, {"checkpoint_dir": folder})), None

    def _settings_of_runs(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The settings of each run of a trial, those that are not the default. Raises UserError where impossible."""
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
        """What makes the splits those of the study, whatever features and window a trial has: none sees its test."""
        usual = TradingConfig()
        of_study = {name: self._base.get(name, getattr(usual, name)) for name in ("features", "window")}
        try:
            return self._tasks.fractions_as_of(replace(trading, **of_study), trading)
        except UserError:  # data or features that cannot be used, which the run tells
            return {}


def report_interval(base: Mapping[str, Any]) -> int:
    """How many environment steps lie between two reports of a trial: the same for all trials of a study.

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
    """How a run ended, why it did not finish, and its result if it began. training: the ranks of the run, as long as it
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
    if result is not None and not isinstance(error, RankLost | RankFailed):  # which knows more of the rank than the run
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
