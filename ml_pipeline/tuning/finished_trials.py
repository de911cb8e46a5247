"""The finished trials of a study with their validation returns, as `judgement` needs them."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.tuning.judgement import JudgedTrial
from ml_pipeline.tuning.study_files import known_folders
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, read_validation_returns

_FOLD = re.compile(r"-fold-\d+$")


def finished_trials(study: Study, study_folder: Path) -> list[JudgedTrial]:
    """Complete and pruned trials by number, without those that never began: impossible and void ones.

    A trial that continues another one takes its place. Of several seeds, the returns are those of the run with the
    median Sharpe ratio (of two in the middle, the lower); of several folds, those of all, one after another.
    Raises UserError where a file of returns cannot be read.
    """
    finished = [trial for trial in study.get_trials(deepcopy=False) if _counts(trial)]
    continued = {trial.user_attrs.get("continues") for trial in finished}
    return [_judged(trial, study_folder) for trial in finished if trial.number not in continued]


def _counts(trial: FrozenTrial) -> bool:
    is_finished = trial.state in {TrialState.COMPLETE, TrialState.PRUNED}
    return is_finished and not (trial.user_attrs.get("void") or trial.user_attrs.get("impossible"))


def _judged(trial: FrozenTrial, study_folder: Path) -> JudgedTrial:
    folders = known_folders(study_folder, trial.user_attrs)
    n_evaluations = trial.user_attrs.get("evaluations", len(trial.intermediate_values))
    records = [(folder, record) for folder in folders if (record := read_validation_returns(folder)) is not None]
    folder, returns = _one_record(records) if records else (folders[0] if folders else None, None)
    return JudgedTrial(
        trial.number,
        trial.value,
        folder,
        returns,
        n_checkpoints=max(1, math.ceil(n_evaluations / max(1, len(folders)))),
        complete=trial.state == TrialState.COMPLETE,
    )


def _one_record(records: Sequence[tuple[Path, ValidationReturns]]) -> tuple[Path, ValidationReturns]:
    """The record that stands for a trial, and the folder of its run: of folds, that of the latest."""
    if len(records) > 1 and all(_FOLD.search(folder.name) for folder, _ in records):
        in_order = sorted(records, key=lambda each: each[1].time[:1].tolist())
        return in_order[-1][0], _one_after_another([record for _, record in in_order])
    by_sharpe = sorted(records, key=lambda each: _or_cash(each[1].sharpe))
    return by_sharpe[(len(by_sharpe) - 1) // 2]


def _or_cash(sharpe: float) -> float:
    """A run that never traded has no Sharpe ratio, and is worth as much as cash."""
    return 0.0 if math.isnan(sharpe) else sharpe


def _one_after_another(records: Sequence[ValidationReturns]) -> ValidationReturns:
    """The records joined; a time that two of them have is taken from the first."""
    times, rows = np.unique(np.concatenate([each.time for each in records]), return_index=True)
    returns = np.concatenate([each.returns for each in records])[rows]
    return ValidationReturns(times, returns, records[0].periods_per_year)
