"""The files of a study's folder, its trials' run folders, and the outcome of a trial."""

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
"""Progress of the study; replaced atomically, and read by the dashboard without Optuna."""
JOURNAL_FILE = "journal.log"
"""Optuna's storage, unless --storage names another one."""
N_TRIALS_ATTRIBUTE = "n_trials"
"""Attribute of the Optuna study: the number of finished trials that `tune` was last given."""
REPORT_FILE = "report.html"
HEARTBEAT_FILE = "heartbeat"
"""In a trial's folder: touched every few seconds by the process that runs the trial."""
RETURNS_FILE = "validation_returns.npz"
"""In a trial's folder: the returns of its best checkpoint on the validation split, bar by bar."""
FOLDERS_ATTRIBUTE = "folders"
"""Attribute of a trial: the names of its run folders, one per seed or fold."""
IDENTITY_ATTRIBUTE = "identity"
"""Attribute of the Optuna study: its definition, see `study_identity`."""
FEATURE_WARNINGS = "feature warnings"
"""In the identity: warnings of features that may use later data. Trials that search features have it as well."""
_MOST_BYTES = 50_000_000
_MOST_WARNINGS, _LONGEST_WARNING = 20, 500
_TRIAL = re.compile(r"trial-\d{4,}(-|$)", re.ASCII)


def trial_folder(study: Path, number: int, unit: str = "") -> Path:
    """The run folder of a trial; unit: one of several runs, such as "seed-1" or "fold-2".

    >>> trial_folder(Path("study"), 7, "seed-1").as_posix()
    'study/trial-0007-seed-1'
    """
    return study / "-".join([f"trial-{number:04}", *filter(None, [unit])])


def is_trial(folder: Path) -> bool:
    """Whether a folder has the name of a trial's folder.

    >>> is_trial(Path("study/trial-0007-seed-1")), is_trial(Path("trial-run"))
    (True, False)
    """
    return _TRIAL.match(folder.name) is not None


TrialKind = Literal["complete", "pruned", "failed", "impossible", "stopped", "void", "running", "waiting"]
"""impossible: its settings do not fit together. stopped: by a request; a later trial continues it. void: it never ran,
because other processes were quicker."""
STOPPED = "stopped"
"""Reason of a trial that was stopped by a request and queued again."""


def kind_of(trial: "FrozenTrial") -> TrialKind:
    """The outcome of a trial."""
    told, state = trial.user_attrs, trial.state.name
    if told.get("void") or told.get("impossible"):
        return "void" if told.get("void") else "impossible"
    if state == "FAIL":
        return "stopped" if told.get("reason") == STOPPED else "failed"
    return cast("TrialKind", state.lower())


def is_try(trial: "FrozenTrial") -> bool:
    """False if the trial continues an earlier one; it then does not count as an attempt."""
    return trial.user_attrs.get("continues") is None


def n_finished(trials: "Sequence[FrozenTrial]") -> int:
    """The number of trials that count towards --n-trials: complete or pruned, and not a continuation."""
    return sum(kind_of(trial) in {"complete", "pruned"} and is_try(trial) for trial in trials)


def is_running_study(folder: Path) -> bool:
    """Whether study.json says "running", and its writer is not known to have ended."""
    try:
        told = json.loads(read_regular(folder / STUDY_FILE, most_bytes=_MOST_BYTES))
        return told["state"] == "running" and is_alive(identity_from(**told["writer"])) is not False
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def is_study_folder(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return any(os.path.isfile(folder / name) for name in (STUDY_FILE, JOURNAL_FILE))


def named_folders(study: Path, attributes: Mapping[str, Any]) -> list[Path]:
    """The run folders that a trial's attributes name; none if it has not begun.

    Raises UserError if one is outside the study's folder: other programs can write the storage too.
    """
    named = attributes.get(FOLDERS_ATTRIBUTE) or []
    folders = [path_inside(study, name) for name in named] if isinstance(named, list | tuple) else [None]
    found = [folder for folder in folders if folder is not None]
    if len(found) < len(folders):
        raise UserError(
            f"A trial's run folders must lie in the study's folder {study}, but the storage names "
            f"{excerpt(repr(named), 100)}, which is not in it; start another study."
        )
    return found


def known_folders(study: Path, attributes: Mapping[str, Any]) -> list[Path]:
    """As `named_folders`, but none if a name leads outside the study's folder."""
    try:
        return named_folders(study, attributes)
    except UserError:
        return []


def identity_of(study: "optuna.Study") -> Mapping[str, Any]:
    """The study's definition, see `study_identity`; empty if another program created the study."""
    identity = study.user_attrs.get(IDENTITY_ATTRIBUTE)
    return identity if isinstance(identity, dict) else {}


def feature_warnings(study: "optuna.Study") -> tuple[str, ...]:
    """Sentences about features of the study or of any of its trials that may use later data."""
    told = [identity_of(study).get(FEATURE_WARNINGS)]
    told += [trial.user_attrs.get(FEATURE_WARNINGS) for trial in study.get_trials(deepcopy=False)]
    sentences = (each for group in told if isinstance(group, list) for each in group if isinstance(each, str))
    return tuple(dict.fromkeys(in_one_line(each, _LONGEST_WARNING) for each in sentences))[:_MOST_WARNINGS]


def warnings_in_words(warnings: Sequence[str]) -> tuple[str, ...]:
    """The warnings for the user, each with its consequence.

    >>> warnings_in_words(["up has a rank correlation of 0.29"])[0]
    'A feature may use later data, which would make every figure wrong: up has a rank correlation of 0.29'
    """
    return tuple(f"A feature may use later data, which would make every figure wrong: {each}" for each in warnings)


def require_optuna() -> None:
    """Raise UserError, with the install command, if Optuna is missing: it is an extra."""
    if find_spec("optuna") is None:
        raise UserError(f"Tuning needs Optuna, which is not installed; {install_extra('tune')}")
