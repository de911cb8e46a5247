"""Access to Optuna's private parts, one function for each, so that a new version can break only this module.

Written for Optuna 5; pyproject.toml limits the version, and a test shows which function a new version breaks.
"""

from pathlib import Path
from typing import Any, Protocol

from optuna import Study
from optuna.trial import FrozenTrial, TrialState


class StoredTrial(Protocol):
    """The parts of an `optuna.Trial` that are needed to write to the storage from another thread."""

    storage: Any
    _trial_id: int


def stored_trials(study: Study) -> list[FrozenTrial]:
    """All trials, not copied. `get_trials` of the study that Hyperband passes to samplers returns only one bracket."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def set_attribute(trial: StoredTrial, name: str, value: Any) -> None:
    """Set a user attribute of a running trial from any thread. Raises UpdateFinishedTrialError if it has ended."""
    trial.storage.set_trial_user_attr(trial._trial_id, name, value)


def fail_trial(study: Study, trial: FrozenTrial, reason: str) -> None:
    """Fail another process's trial. `Study.tell` would also call the sampler, and a grid would then stop the study.

    Raises UpdateFinishedTrialError or StorageInternalError if it has ended.
    """
    study._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def journal_of(study: Study) -> Path | None:
    """The file of a journal, which several machines may share; None for another storage."""
    backend = getattr(study._storage, "_backend", None)
    path = getattr(backend, "_path", None) or getattr(backend, "_file_path", None)
    return None if path is None else Path(path).absolute()


def engine_of(study: Study) -> Any:
    """SQLAlchemy's engine below storages that retry or cache; None for a storage that is a file."""
    storage: Any = study._storage
    while storage is not None and not hasattr(storage, "engine"):
        storage = getattr(storage, "_inner", None) or getattr(storage, "_backend", None)
    return getattr(storage, "engine", None)
