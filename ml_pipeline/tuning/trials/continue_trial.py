"""Continues a pruned or failed trial, or trains any trial for longer; the result is a new trial of the study."""

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runs.folder_claim import check_not_written
from ml_pipeline.runs.state import STATE_FILE
from ml_pipeline.runs.stop import STOP_NOTE, StopRequest
from ml_pipeline.runs.train_config import layered, train_config
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.tuning.config import ObjectiveConfig
from ml_pipeline.tuning.study_files import FEATURE_WARNINGS, HEARTBEAT_FILE, RETURNS_FILE, named_folders
from ml_pipeline.tuning.trials.trial_run import TrialOutcome, TrialRuns

_OF_AN_END = (STATE_FILE, f"{STATE_FILE}.lock", STOP_NOTE, HEARTBEAT_FILE, RETURNS_FILE)
"""Files that are not copied with a run: they describe the process and the end of the original run."""

_BY_ITSELF = "continues when tune is started without --continue-trial"


def continue_trial(
    study: optuna.Study,
    study_folder: Path,
    number: int,
    *,
    base: Mapping[str, Any],
    objective: ObjectiveConfig,
    total_timesteps: int | None = None,
    stop: StopRequest,
    say: Callable[[str], None],
) -> TrialOutcome:
    """Train trial `number` to its full budget or to `total_timesteps`, bit for bit as if it had not ended before.

    Training continues in the trial's run folders, or, if it was complete, in copies named after the new budget, because
    its value belongs to the originals. A continuation that completes is added to the study as a new trial with the user
    attribute "continues"; call this again to continue one that was stopped.

    Raises UserError if there is no such trial, it has nothing left to do, or its checkpoints are missing.
    """
    trial = _trial_of(study, number)
    settings = trial.user_attrs["settings"]
    planned = train_config(layered(base, settings)).timesteps
    if total_timesteps is not None and total_timesteps < planned:
        raise UserError(
            f"Trial {number} is planned for {planned:,} steps, but got total_timesteps {total_timesteps:,}; give more, "
            "or leave it out to continue to its full budget."
        )
    folders = _folders_of(trial, study_folder, n=len(objective.units(train_config(layered(base, settings)))))
    _require_checkpoint(study_folder, number, folders)
    if trial.state == TrialState.COMPLETE:
        if total_timesteps is None or total_timesteps == planned:
            raise UserError(
                f"Trial {number} has finished its {planned:,} steps; give a larger total_timesteps to train it for "
                "longer."
            )
        folders = [_copied(study_folder, name, _longer(name, total_timesteps)) for name in folders]
    watched = _Unpruned(number)
    began = time.perf_counter()
    with closing(TrialRuns(base, objective, study_folder)) as runs:
        outcome = runs.train(
            watched,
            settings,
            folders=folders,
            changes={} if total_timesteps is None else {"total_timesteps": total_timesteps},
            stop=stop,
            say=say,
        )
    if outcome.state == "complete":
        attributes = {
            "continues": number,
            "folders": list(outcome.folders),
            "settings": {**settings, **({} if total_timesteps is None else {"total_timesteps": total_timesteps})},
            "global_step": outcome.global_step,
            "evaluations": outcome.n_evaluations,
            "seconds": time.perf_counter() - began,
            "host": this_process().host,
            "pid": this_process().pid,
        }
        if outcome.feature_warnings:
            attributes[FEATURE_WARNINGS] = list(outcome.feature_warnings)
        if outcome.validation_sharpe is not None:
            attributes["validation_sharpe"] = outcome.validation_sharpe
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                value=outcome.value,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=attributes,
                intermediate_values=watched.reported,
            )
        )
    return outcome


class _Unpruned:
    """A trial that is never pruned, and keeps its reported values."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reported: dict[int, float] = {}

    def report(self, value: float, step: int) -> None:
        self.reported[step] = value

    def should_prune(self) -> bool:
        return False


def _trial_of(study: optuna.Study, number: int) -> FrozenTrial:
    trials = study.get_trials(deepcopy=False)
    if not 0 <= number < len(trials):
        has = f"trials 0 to {len(trials) - 1}" if trials else "no trials yet"
        raise UserError(f"There is no trial {number} in the study {study.study_name}, which has {has}.")
    trial = trials[number]
    if trial.state == TrialState.RUNNING:
        raise UserError(f"Trial {number} is running; wait for its end, or stop it.")
    if trial.state == TrialState.WAITING:
        raise UserError(f"Trial {number} is waiting for its turn, and {_BY_ITSELF}.")
    _require_not_repeated(trials, number)
    if not {"folders", "settings"} <= trial.user_attrs.keys():
        why = trial.user_attrs.get("reason") or "it never began"
        raise UserError(f"Trial {number} has no run to continue: {str(why).rstrip('.')}.")
    later = [each.number for each in trials if each.user_attrs.get("continues") == number]
    if later and trial.state != TrialState.COMPLETE:
        raise UserError(f"Trial {number} was continued to its end as trial {later[-1]}; continue that one.")
    return trial


def _folders_of(trial: FrozenTrial, study_folder: Path, *, n: int) -> list[str]:
    """The names of a trial's run folders. Raises UserError unless they are n folders of the study."""
    folders = named_folders(study_folder, trial.user_attrs)
    if len(folders) != n:
        raise UserError(
            f"Trial {trial.number} names {counted(len(folders), 'run folder')}, but has {counted(n, 'run')}; it cannot "
            "continue."
        )
    return [folder.name for folder in folders]


def _require_not_repeated(trials: Sequence[FrozenTrial], number: int) -> None:
    """Raise UserError if a later trial continues in the same folders: the result would count twice."""
    first = trials[number].user_attrs.get("failed_trial", number)
    repeats = [each for each in trials[number + 1 :] if each.user_attrs.get("failed_trial") == first]
    if not repeats:
        return
    last = repeats[-1]
    if last.state == TrialState.WAITING:
        raise UserError(f"Trial {number} was queued again as trial {last.number}, and {_BY_ITSELF}.")
    if last.state == TrialState.RUNNING:
        raise UserError(f"Trial {number} continues as trial {last.number}, which is running; wait for its end.")
    raise UserError(f"Trial {number} was continued as trial {last.number}; continue that one.")


def _require_checkpoint(study_folder: Path, number: int, folders: list[str]) -> None:
    """Raise UserError unless the first run left a checkpoint; the runs are trained in order."""
    checkpoint = study_folder / folders[0] / LATEST_CHECKPOINT
    if not checkpoint.is_file():
        raise UserError(
            f"Trial {number} cannot continue: there is no checkpoint {shown_path(checkpoint)}; restore its folder, or "
            "continue on the machine that has it."
        )


def _longer(name: str, total_timesteps: int) -> str:
    """The name of a copy of a run folder.

    >>> _longer("trial-0007-512-steps", 1024)
    'trial-0007-1024-steps'
    """
    return f"{re.sub(r'-[0-9]+-steps$', '', name)}-{total_timesteps}-steps"


def _copied(study_folder: Path, name: str, copy: str) -> str:
    """Copy a run folder atomically so that the run can continue there; an existing copy is kept."""
    source, target = study_folder / name, path_inside(study_folder, copy)
    if target is None:
        raise UserError(f"{study_folder / copy} is a link, but a run must not write elsewhere; remove it.")
    if target.is_dir():
        return copy
    check_not_written(source)
    unfinished = study_folder / f".{copy}"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a copy that was killed
        shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns(*_OF_AN_END))
        unfinished.rename(target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(f"{source} cannot be copied to {target}: {error.strerror}; make room.") from error
    return copy
