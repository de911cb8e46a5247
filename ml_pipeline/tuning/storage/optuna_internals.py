"""What Optuna does not publish and a study needs: each behind one function, so that a new version breaks one module.

Read of Optuna 5; pyproject.toml holds the upper pin, and a test tells which function a version breaks.
"""

from pathlib import Path
from typing import Any, Protocol

from optuna import Study
from optuna.trial import FrozenTrial, TrialState


class StoredTrial(Protocol):
    """What of an `optuna.Trial` is needed to write to the storage from another thread."""

    storage: Any
    _trial_id: int


def stored_trials(study: Study) -> list[FrozenTrial]:
    """All trials of the study, uncopied. `get_trials` of the study that Hyperband hands samplers has one bracket's."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def set_attribute(trial: StoredTrial, name: str, value: Any) -> None:
    """Set a user attribute of a running trial from any thread. Raises UpdateFinishedTrialError if it has ended."""
    trial.storage.set_trial_user_attr(trial._trial_id, name, value)


def fail_trial(study: Study, trial: FrozenTrial, reason: str) -> None:
    """Fail another process's trial. `Study.tell` would also ask the sampler, of which a grid then stops the study.

    Raises UpdateFinishedTrialError or StorageInternalError if it has ended.
    """
    study._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def journal_of(study: Study) -> Path | None:
    """The file of a journal, which several machines may share; None of another storage."""
    backend = getattr(study._storage, "_backend", None)
    path = getattr(backend, "_path", None) or getattr(backend, "_file_path", None)
    return None if path is None else Path(path).absolute()


def engine_of(study: Study) -> Any:
    """SQLAlchemy's engine below a storage that waits for it or caches what it reads; None of one that is a file."""
    storage: Any = study._storage
    while storage is not None and not hasattr(storage, "engine"):
        storage = getattr(storage, "_inner", None) or getattr(storage, "_backend", None)
    return getattr(storage, "engine", None)
