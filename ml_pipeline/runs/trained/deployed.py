"""Resolves `models/NAME/current` to one version of a deployed model.

models/NAME/ holds the versions v1/, v2/, ... of a deployed model, and `current`, which names one of them: a symbolic
link or, on systems without links, a file with the name in it. It may be switched at any moment, so resolve it once
before reading several files. `tuning.promotion.model_store` writes these folders.
"""

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import read_json_object
from ml_pipeline.config.wording import ended, in_one_line
from ml_pipeline.runtime.files import open_regular, path_inside

CURRENT = "current"
PROMOTION_FILE = "promotion.json"
"""In a version's folder: why it was promoted."""
EVALUATIONS_FOLDER = "evaluations"
"""Next to the versions, which never change: later evaluations of them."""

FEATURE_WARNINGS_KEY, DESPITE_KEY = "feature_warnings", "despite"
"""In promotion.json: warnings of features that may use later data, and why the version was promoted despite them."""

_VERSION = re.compile(r"v([1-9][0-9]{0,8})")
_LONGEST = 500
_MOST_BYTES = 100  # of a file that names a version


class Warned(NamedTuple):
    """Warnings about the features of a deployed model, and the reason given for promoting it despite them."""

    warnings: tuple[str, ...]
    despite: str | None

    def as_json(self) -> dict[str, Any]:
        """For promotion.json."""
        return {FEATURE_WARNINGS_KEY: list(self.warnings), DESPITE_KEY: self.despite}

    def sentences(self) -> tuple[str, ...]:
        """For the user; empty if there is no warning."""
        if not self.warnings:
            return ()
        why = in_one_line(self.despite or "no reason was given", _LONGEST)
        return (
            f"A feature may use later data: {ended('; '.join(self.warnings))}",
            f"It was promoted despite this: {ended(why)}",
        )


def warned_of(folder: Path) -> Warned:
    """The feature warnings in promotion.json of a version; none for other folders.

    Raises UserError if the file cannot be read.
    """
    promotion = read_json_object(folder / PROMOTION_FILE) if is_version_folder(folder) else {}
    told, despite = promotion.get(FEATURE_WARNINGS_KEY), promotion.get(DESPITE_KEY)
    warnings = [in_one_line(each, _LONGEST) for each in told if isinstance(each, str)] if isinstance(told, list) else []
    return Warned(tuple(warnings), despite if isinstance(despite, str) else None)


def version_number(name: str) -> int | None:
    """The number of a version's folder; None if the name is not a version's.

    >>> version_number("v12"), version_number("v012"), version_number("validation")
    (12, None, None)
    """
    found = _VERSION.fullmatch(name)
    return None if found is None else int(found[1])


def current_number(model: Path) -> int | None:
    """The current version in a model's folder, even if that version is gone; None without `current`.

    Raises UserError if `current` names no version.
    """
    path = model / CURRENT
    named = _named_by(path)
    if named is None:
        return None
    number = version_number(named)
    if number is None:
        raise UserError(
            f'{path} names "{named[:_MOST_BYTES]}", which is not a version; choose one with `ml-pipeline rollback '
            f"{path.absolute().parent.name} --to vN`."
        )
    return number


def resolved(path: Path) -> Path:
    """The version's folder that `models/NAME/current` or `models/NAME` means now.

    A file path through `current` is resolved too. Other paths are returned unchanged.
    Raises UserError if the version was deleted.
    """
    if path.name == CURRENT:
        return _resolved_current(path)
    if path.parent.name == CURRENT:
        return _resolved_current(path.parent) / path.name
    if path.is_dir() and version_number(_named_by(path / CURRENT) or "") is not None:
        return _resolved_current(path / CURRENT)
    return path


def is_version_folder(folder: Path) -> bool:
    """True if a folder is a version of a deployed model."""
    return version_number(folder.name) is not None and (folder / PROMOTION_FILE).is_file()


def _resolved_current(path: Path) -> Path:
    named = _named_by(path)
    if named is None or version_number(named) is None:
        return path  # an unrelated folder of this name
    version = path_inside(path.parent, named)
    if version is None or not version.is_dir():
        raise UserError(
            f"{path} names {named}, which does not exist: it was deleted. Return to another version with `ml-pipeline "
            f"rollback {path.absolute().parent.name}`."
        )
    return version


def _named_by(path: Path) -> str | None:
    """The target of a link, or the name in a file; None if neither exists."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:  # not a link
        pass
    try:
        with open_regular(path) as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip()
    except OSError:
        return None
