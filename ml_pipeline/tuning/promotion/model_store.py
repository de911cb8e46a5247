"""The folder of a deployed model: its versions, which never change, and the current one.

    models/NAME/v1/, v2/, ...     versions, read-only; numbers are never reused
    models/NAME/current           the deployed version; `runs.trained.deployed` reads it
    models/NAME/history.jsonl     every switch: "action" is promote, rollback, or found (switched by hand, or by a
                                  process killed before it recorded the switch); "when" in UTC, "from" and "to" are
                                  versions, and a promotion names study and trial

A version is written to a hidden folder that is then renamed, and `current` is also replaced by a rename. So a process
killed at any moment leaves either the previous or the new version deployed. Unfinished folders are ignored, and the
next promotion removes them.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.json_object import read_json_object
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.folder import runs_folder
from ml_pipeline.runs.folders import folders_in
from ml_pipeline.runs.trained.deployed import CURRENT, PROMOTION_FILE, current_number, version_number
from ml_pipeline.runtime.files import alone, open_regular, path_inside, read_regular, sync_folder
from ml_pipeline.runtime.process_identity import new_owned_folder

DATA_FILE = "data.json"
"""In a version: a description and fingerprint of the training data, and the dates of its splits."""
HISTORY_FILE = "history.jsonl"
_MOST_BYTES = 16_000_000  # of the history

Action = Literal["promote", "rollback", "found"]
_NAME = re.compile(r"\w[\w.+@=,-]{0,99}")
_LOCK_FILE = ".lock"
_TEMPORARY = ".promoting-"
_NEW_CURRENT, _NEW_HISTORY = ".current.new", ".history.new"
_READ_ONLY_FILE, _READ_ONLY_FOLDER = 0o444, 0o555
_NOBODYS_S = 3600.0
"""Age at which a temporary folder without an owner is removed: its process was killed right after creating it."""


class Switch(NamedTuple):
    """One switch of `current`. before, after: version numbers; before is None for the first switch."""

    action: str
    when: str
    before: int | None
    after: int
    details: Mapping[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        before = None if self.before is None else f"v{self.before}"
        return {"action": self.action, "when": self.when, "from": before, "to": f"v{self.after}", **self.details}


class DeployedMeanwhile(Exception):
    """Another process switched `current` after this one had read it."""


@dataclass(frozen=True)
class Version:
    """One version of a model: its number, its folder, and its promotion.json."""

    number: int
    folder: Path

    @property
    def name(self) -> str:
        return f"v{self.number}"

    @cached_property
    def promotion(self) -> Mapping[str, Any]:
        """The record of its promotion. Raises UserError if the file cannot be read."""
        try:
            return read_json_object(self.folder / PROMOTION_FILE)
        except UserError as error:
            raise UserError(f"{self.name} is damaged: {error}") from error

    def require_whole(self) -> None:
        """Raise UserError if a file differs from the promoted one."""
        for name, expected in dict(self.promotion.get("files", {})).items():
            path: Path | None = self.folder
            for part in str(name).split("/"):
                path = None if path is None else path_inside(path, part)
            if path is None:
                raise UserError(
                    f'{PROMOTION_FILE} lists "{in_one_line(str(name), 100)}", which is not a file of {self.name}.'
                )
            try:
                found = digest_of(path)
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror or error}; {self.name} is damaged.") from error
            if found != expected:
                raise UserError(f"{path} is not the file that was promoted: it was changed or is damaged.")


class ModelStore:
    """The versions of the model NAME in a folder of models.

    All methods raise UserError if the folder cannot be read or written, or the disk is full.
    """

    def __init__(self, models: Path, name: str) -> None:
        """Raises UserError if the name is not a plain folder name."""
        if not _NAME.fullmatch(name):
            raise UserError(
                f'"{name}" cannot be the name of a model: use letters, digits and any of "._+@=,-", beginning with a '
                "letter or digit, such as eurusd_5m."
            )
        self.models = models
        self.name = name
        self.folder = models / name

    @property
    def current(self) -> int | None:
        """The number of the deployed version, even if its folder was deleted; None: none yet."""
        return current_number(self.folder)

    def deployed(self) -> Version | None:
        """The deployed version; None if there is none, or its folder was deleted."""
        number = self.current
        return None if number is None else self._find(number)

    def versions(self) -> list[Version]:
        """All versions that exist, by number."""
        return [Version(number, self.folder / f"v{number}") for number in sorted(_numbers_in(self.folder))]

    def history(self) -> list[Switch]:
        """Every switch, the earliest first."""
        with _told(self.folder):
            return read_history(self.folder, self._known_current())

    def require_there(self) -> None:
        """Raise UserError if there is no model of this name."""
        if self._known_current() is None and not self.versions():
            known = model_names(self.models)
            meant = f" {nearest(self.name, known)}" if known else " Promote one with `ml-pipeline promote STUDY`."
            raise UserError(f"There is no model {self.name} in {self.models}.{meant}")

    def promote(
        self, fill: Callable[[Path], None], promotion: Mapping[str, Any], *, instead_of: int | None, **details: Any
    ) -> Version:
        """Make a new version, and switch `current` to it.

        fill: writes its files into a folder. promotion: the content of promotion.json, without the version's number and
        the digests of its files; read after `fill` returns. instead_of: the version that it was compared with.
        details: for the history.
        Raises DeployedMeanwhile, and leaves nothing behind, if a version other than `instead_of` is deployed by then.
        """
        with _told(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary = new_owned_folder(_TEMPORARY, str(self.folder))
            try:
                made = temporary / "version"
                made.mkdir()
                fill(made)
                digests = {str(path.relative_to(made).as_posix()): digest_of(path) for path in _files_in(made)}
                _synchronize(made)
                with alone(self.folder / _LOCK_FILE):
                    if self.current != instead_of:
                        raise DeployedMeanwhile
                    version = self._next_version()
                    record = {"version": version.name, **promotion, "files": digests}
                    (made / PROMOTION_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
                    _synchronize(made)
                    self._prepare_switch(new_switch("promote", instead_of, version.number, **details))
                    os.rename(made, version.folder)
                    _seal(version.folder)
                    self._finish_switch()
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return version

    def roll_back(self, to: int | None = None) -> Switch:
        """Switch `current` to the version deployed before it, or to the given one.

        Raises UserError if there is no such version, or it is already deployed or damaged.
        """
        self.require_there()
        with _told(self.folder), alone(self.folder / _LOCK_FILE):
            now = self.current if to is None else self._known_current()  # a rollback repairs a damaged `current`
            version = self._earlier() if to is None else self._find(to)
            if version is None:
                there = ", ".join(each.name for each in self.versions()) or "none"
                raise UserError(f"{self.name} has no version v{to}; its versions: {there}.")
            if version.number == now:
                raise UserError(f"{version.name} of {self.name} is already deployed.")
            version.require_whole()
            switch = new_switch("rollback", now, version.number)
            self._prepare_switch(switch)
            self._finish_switch()
            return switch

    def _known_current(self) -> int | None:
        """As `current`, but None if it names no version."""
        try:
            return self.current
        except UserError:
            return None

    def _earlier(self) -> Version:
        """The latest version deployed before the current one that still exists."""
        now = self.current
        for number in reversed(deployed_in_turn(read_history(self.folder, now))):
            version = self._find(number)
            if number != now and version is not None:
                return version
        others = ", ".join(each.name for each in self.versions() if each.number != now)
        remedy = f"name one of {others} with --to" if others else "there is no other version"
        raise UserError(f"No version of {self.name} from before v{now} still exists; {remedy}.")

    def _find(self, number: int) -> Version | None:
        folder = path_inside(self.folder, f"v{number}")
        return Version(number, folder) if folder is not None and folder.is_dir() else None

    def _next_version(self) -> Version:
        """A number above all that exist or were ever deployed: a deleted v3 is never replaced by another v3."""
        switches = read_history(self.folder, self.current)
        known = {*_numbers_in(self.folder), *(n for each in switches for n in (each.before, each.after) if n)}
        number = max(known, default=0) + 1
        return Version(number, self.folder / f"v{number}")

    def _prepare_switch(self, switch: Switch) -> None:
        """Write all files of the switch first, so that a full disk is noticed before it."""
        switches = [*read_history(self.folder, self._known_current()), switch]
        with open(self.folder / _NEW_HISTORY, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(each.as_json())}\n" for each in switches)
            file.flush()
            os.fsync(file.fileno())
        write_link(self.folder / _NEW_CURRENT, switch.after)

    def _finish_switch(self) -> None:
        os.replace(self.folder / _NEW_CURRENT, self.folder / CURRENT)
        sync_folder(self.folder)
        os.replace(self.folder / _NEW_HISTORY, self.folder / HISTORY_FILE)
        sync_folder(self.folder)

    def _remove_leftovers(self) -> None:
        """Remove folders of killed promotions; `new_owned_folder` removes those that name their owner."""
        for left in self.folder.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):
                if not (left / "owner.json").exists() and time.time() - left.stat().st_mtime > _NOBODYS_S:
                    shutil.rmtree(left, ignore_errors=True)


def new_switch(action: Action, before: int | None, after: int, **details: Any) -> Switch:
    """A switch at the current time."""
    return Switch(action, datetime.now(UTC).isoformat(timespec="seconds"), before, after, details)


def read_history(model: Path, current: int | None) -> list[Switch]:
    """The switches of a model's folder, the earliest first; invalid lines, such as a torn one, are skipped.

    current: the deployed version; if it differs from the last line's, a switch "found" is added.
    Raises OSError if the file cannot be read.
    """
    try:
        lines = read_regular(model / HISTORY_FILE, most_bytes=_MOST_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    switches = [switch for line in lines if (switch := _switch_in(line)) is not None]
    latest = switches[-1].after if switches else None
    if current is not None and current != latest:
        switches.append(new_switch("found", latest, current))
    return switches


def deployed_in_turn(switches: Sequence[Switch]) -> list[int]:
    """The versions that led to the deployed one, each after the version that a rollback from it returns to.

    >>> deployed_in_turn([new_switch("promote", None, 1), new_switch("promote", 1, 2), new_switch("promote", 2, 3)])
    [1, 2, 3]
    >>> deployed_in_turn([new_switch("promote", None, 1), new_switch("promote", 1, 2), new_switch("rollback", 2, 1)])
    [1]
    """
    versions: list[int] = []
    for switch in switches:
        if switch.action != "promote" and switch.after in versions:
            del versions[versions.index(switch.after) :]
        elif switch.after in versions:
            versions.remove(switch.after)
        versions.append(switch.after)
    return versions


def _switch_in(line: str) -> Switch | None:
    try:
        values = json.loads(line)
        action, when = str(values.pop("action")), str(values.pop("when"))
        before, after = values.pop("from"), version_number(values.pop("to"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None if after is None else Switch(action, when, version_number(str(before)), after, values)


def models_folder(named: Path | None) -> Path:
    """The folder of models that a flag names; none: models/ next to checkpoints/."""
    return (runs_folder().parent / "models" if named is None else named.expanduser()).absolute()


def model_names(models: Path) -> list[str]:
    """The models in a folder, by name. Raises UserError if it cannot be read."""
    try:
        names = [folder.name for folder in folders_in(models) if _NAME.fullmatch(folder.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{models} cannot be read: {error.strerror}; name a folder of models.") from error
    return [name for name in names if _numbers_in(models / name) or os.path.lexists(models / name / CURRENT)]


def write_link(path: Path, number: int) -> None:
    """Make a symbolic link to a version or, if the system has none, a file that contains its name."""
    path.unlink(missing_ok=True)
    try:
        os.symlink(f"v{number}", path, target_is_directory=True)
    except (NotImplementedError, PermissionError):  # Windows without the right to make links
        path.write_text(f"v{number}\n", encoding="utf-8")


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Within the block, turn an OSError into a UserError of one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The model in {folder} cannot be read or written: {error.strerror or error}; the deployed version is "
            "unchanged."
        ) from error


def _numbers_in(folder: Path) -> list[int]:
    try:
        with os.scandir(folder) as entries:
            found = [version_number(each.name) for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [number for number in found if number is not None]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digest_of(path: Path) -> str:
    """SHA-256 of a regular file. Raises OSError if it cannot be read."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _synchronize(folder: Path) -> None:
    """Wait until all files of a folder are on the disk."""
    for path in _files_in(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(each)


def _seal(folder: Path) -> None:
    """Make the folder read-only; only after it has been moved, since a read-only folder cannot be moved."""
    for path in folder.rglob("*"):
        path.chmod(_READ_ONLY_FILE if stat.S_ISREG(path.stat().st_mode) else _READ_ONLY_FOLDER)
    folder.chmod(_READ_ONLY_FOLDER)
