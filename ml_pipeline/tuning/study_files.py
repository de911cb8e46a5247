"""A study's folder and its trials, which are run folders in it: what files are called, and what became of a trial."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ml_pipeline.config.errors import UserError, excerpt, install_extra
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runtime.files import path_inside, read_regular
from ml_pipeline.runtime.process_identity import identity_from, is_alive

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

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
FOLDERS_ATTRIBUTE = "folders"
"""Of a trial: the names of its run folders, one for each seed or fold."""
IDENTITY_ATTRIBUTE = "identity"
"""Of the Optuna study: what makes it the same study."""
FEATURE_WARNINGS = "feature warnings"
"""In the identity: sentences about features that may see ahead. Trials with features of their own have an attribute of
this name."""
_MOST_BYTES = 50_000_000
_MOST_WARNINGS, _LONGEST_WARNING = 20, 500
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


TrialKind = Literal["complete", "pruned", "failed", "impossible", "stopped", "void", "running", "waiting"]
"""impossible: its settings do not fit together. stopped: by a request; a later trial goes on with it. void: others were
quicker, and it never began."""
STOPPED = "stopped"
"""Reason of a trial that a stop request ended, and that is queued again."""


def kind_of(trial: "FrozenTrial") -> TrialKind:
    """What became of a trial."""
    told, state = trial.user_attrs, trial.state.name
    if told.get("void") or told.get("impossible"):
        return "void" if told.get("void") else "impossible"
    if state == "FAIL":
        return "stopped" if told.get("reason") == STOPPED else "failed"
    return cast("TrialKind", state.lower())


def is_try(trial: "FrozenTrial") -> bool:
    """Whether it is a try of its own: one that trained an earlier trial further is none."""
    return trial.user_attrs.get("continues") is None


def n_finished(trials: "Sequence[FrozenTrial]") -> int:
    """How many count towards the number that was asked for: tries that were scored, or pruned while training."""
    return sum(kind_of(trial) in {"complete", "pruned"} and is_try(trial) for trial in trials)


def is_running_study(folder: Path) -> bool:
    """Whether study.json says that trials are being run, and its writer is not known to be gone."""
    try:
        told = json.loads(read_regular(folder / STUDY_FILE, most_bytes=_MOST_BYTES))
        return told["state"] == "running" and is_alive(identity_from(**told["writer"])) is not False
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def is_study_folder(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return any(os.path.isfile(folder / name) for name in (STUDY_FILE, JOURNAL_FILE))


def named_folders(study: Path, attributes: Mapping[str, Any]) -> list[Path]:
    """The run folders that a trial's attributes name; none: it has not begun.

    Raises UserError where one is not in the study's folder: a storage is written by others, too.
    """
    named = attributes.get(FOLDERS_ATTRIBUTE) or []
    folders = [path_inside(study, name) for name in named] if isinstance(named, list | tuple) else [None]
    found = [folder for folder in folders if folder is not None]
    if len(found) < len(folders):
        raise UserError(
            f"A trial's run folders must lie in the study's folder {study}, but the storage names "
            f"{excerpt(repr(named), 100)}, which is no folder in the study; begin another study."
        )
    return found


def known_folders(study: Path, attributes: Mapping[str, Any]) -> list[Path]:
    """As `named_folders`; none also where the names lead elsewhere."""
    try:
        return named_folders(study, attributes)
    except UserError:
        return []


def identity_of(study: "optuna.Study") -> Mapping[str, Any]:
    """What makes it the same study; empty where another program made it."""
    identity = study.user_attrs.get(IDENTITY_ATTRIBUTE)
    return identity if isinstance(identity, dict) else {}


def feature_warnings(study: "optuna.Study") -> tuple[str, ...]:
    """Sentences about features of the study or of any of its trials that may see ahead."""
    told = [identity_of(study).get(FEATURE_WARNINGS)]
    told += [trial.user_attrs.get(FEATURE_WARNINGS) for trial in study.get_trials(deepcopy=False)]
    sentences = (each for group in told if isinstance(group, list) for each in group if isinstance(each, str))
    return tuple(dict.fromkeys(in_one_line(each, _LONGEST_WARNING) for each in sentences))[:_MOST_WARNINGS]


def warnings_in_words(warnings: Sequence[str]) -> tuple[str, ...]:
    """The warnings as a user reads them, each with what it means.

    >>> warnings_in_words(["up has a rank correlation of 0.29"])[0]
    'A feature may see ahead, and then no figure holds: up has a rank correlation of 0.29'
    """
    return tuple(f"A feature may see ahead, and then no figure holds: {each}" for each in warnings)


def require_optuna() -> None:
    """Raise UserError, with the command that installs it, unless Optuna is there: it is an extra."""
    if find_spec("optuna") is None:
        raise UserError(f"Tuning needs Optuna, which is not installed; {install_extra('tune')}")
