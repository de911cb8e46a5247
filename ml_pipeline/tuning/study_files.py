"""A study's folder: what its files are called. Its trials are run folders in it."""

import re
from pathlib import Path

STUDY_FILE = "study.json"
"""How far the study is; rewritten whole, and read by the dashboard without Optuna."""
JOURNAL_FILE = "journal.log"
"""Optuna's storage, where no other one is named."""
N_TRIALS_ATTRIBUTE = "n_trials"
"""Of the Optuna study: how many finished trials it was last asked to have."""
REPORT_FILE = "report.html"
HEARTBEAT_FILE = "heartbeat"
"""In a trial's folder: touched every few seconds by the process that works on the trial."""
RETURNS_FILE = "validation_returns.npz"
"""In a trial's folder: what its best checkpoint earned on the validation split, bar by bar."""
_TRIAL = re.compile(r"trial-\d{4,}(-|$)", re.ASCII)


def trial_folder(study: Path, number: int, unit: str = "") -> Path:
    """The run folder of a trial; unit: which one of several, such as "seed-1" or "fold-2".

    >>> trial_folder(Path("study"), 7, "seed-1").as_posix()
    'study/trial-0007-seed-1'
    """
    return study / "-".join([f"trial-{number:04}", *filter(None, [unit])])


def is_trial(folder: Path) -> bool:
    """Whether a folder is named as a trial's is.

    >>> is_trial(Path("study/trial-0007-seed-1")), is_trial(Path("trial-run"))
    (True, False)
    """
    return _TRIAL.match(folder.name) is not None


def is_study_folder(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return any((folder / name).is_file() for name in (STUDY_FILE, JOURNAL_FILE))
