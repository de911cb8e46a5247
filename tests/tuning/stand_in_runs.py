"""What stands for runs in tests of workers: trials that take no time, and end as their settings say."""

import threading
from collections.abc import Callable
from pathlib import Path

import optuna

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.tuning.search.samplers import SeededByTrial
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import trial_folder
from ml_pipeline.tuning.trials.trial_run import TrialOutcome
from ml_pipeline.tuning.trials.worker import TrialEnd, Worker, WorkerEvents


def usual_outcome(number: int, settings: dict) -> TrialOutcome:
    return TrialOutcome(state="complete", value=settings["x"], global_step=10)


class StandInRuns:
    """Trains nothing. outcome: how the trial of a number and its settings ends; before_end: called meanwhile."""

    def __init__(self, outcome: Callable[[int, dict], TrialOutcome] = usual_outcome, *, before_end=None) -> None:
        self.calls: list[dict] = []
        self._outcome, self._before_end = outcome, before_end

    def folders(self, number, settings):
        if settings["x"] < 0:
            raise UserError("x is negative.")
        return (trial_folder(Path(), number).name,)

    def train(self, trial, settings, *, folders=None, stop, say):
        self.calls.append({"number": trial.number, "settings": settings, "folders": folders})
        if self._before_end is not None:
            self._before_end(trial, stop)
        if stop.requested:
            return TrialOutcome(state="stopped", reason=stop.reason, global_step=5)
        return self._outcome(trial.number, settings)


def suggest_x(trial: optuna.Trial) -> dict:
    return {"x": trial.suggest_float("x", 0, 1)}


def random_sampler(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


def open_study(folder: Path, *, seed: int = 0, make=random_sampler, say=lambda sentence: None) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name="s",
        storage=open_storage(None, folder, say),
        sampler=SeededByTrial(make, seed),
        pruner=optuna.pruners.NopPruner(),
        direction="maximize",
        load_if_exists=True,
    )


class Heard:
    """Keeps what a worker tells."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.ended: list[TrialEnd] = []
        self.said: list[str] = []
        self.lock = threading.Lock()

    @property
    def events(self) -> WorkerEvents:
        return WorkerEvents(began=self.began.append, ended=self.ended.append, say=self.said.append)


def a_worker(folder, *, n_trials, runs=None, study=None, suggest=suggest_x, stop=None, heard=None) -> Worker:
    return Worker(
        study or open_study(folder),
        folder,
        n_trials=n_trials,
        suggest=suggest,
        runs=runs or StandInRuns(),
        stop=stop or StopRequest(),
        events=(heard or Heard()).events,
    )
