"""The folder of a deployed model: its versions, written whole and never changed, and which of them is current.

    models/NAME/v1/, v2/, ...     versions, read-only; a number is never used twice
    models/NAME/current           the version that is deployed; `runs.trained.deployed` reads it
    models/NAME/history.jsonl     every switch of it: "action" is promote, rollback, or found (switched by hand, or by a
                                  process that was killed before it could write); "when" in UTC, "from" and "to" are
                                  versions, and a promotion names study and trial

A version is made in a hidden folder and renamed, and `current` is replaced by a rename, so that a process killed at any
moment leaves the version before it or the new one. What it left half-made is ignored, and removed by the next
promotion.
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
"""In a version: what the policy was trained on, a fingerprint, and when its splits begin and end."""
HISTORY_FILE = "history.jsonl"
_MOST_BYTES = 16_000_000  # of the history

Action = Literal["promote", "rollback", "found"]
_NAME = re.compile(r"\w[\w.+@=,-]{0,99}")
_LOCK_FILE = ".lock"
_TEMPORARY = ".promoting-"
_NEW_CURRENT, _NEW_HISTORY = ".current.new", ".history.new"
_READ_ONLY_FILE, _READ_ONLY_FOLDER = 0o444, 0o555
_NOBODYS_S = 3600.0
"""A temporary folder that names no owner is removed when it is so old: its maker was killed in its first moment."""


class Switch(NamedTuple):
    """One switch of `current`. before, after: numbers of versions; before is None for the first."""

    action: str
    when: str
    before: int | None
    after: int
    details: Mapping[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        before = None if self.before is None else f"v{self.before}"
        return {"action": self.action, "when": self.when, "from": before, "to": f"v{self.after}", **self.details}


class DeployedMeanwhile(Exception):
    """Another process switched `current` after this one had looked at it."""


@dataclass(frozen=True)
class Version:
    """One version of a model: its number, its folder, and what promotion.json says."""

    number: int
    folder: Path

    @property
    def name(self) -> str:
        return f"v{self.number}"

    @cached_property
    def promotion(self) -> Mapping[str, Any]:
        """Why it was promoted. Raises UserError where the file cannot be read."""
        try:
            return read_json_object(self.folder / PROMOTION_FILE)
        except UserError as error:
            raise UserError(f"{self.name} is no whole version: {error}") from error

    def require_whole(self) -> None:
        """Raise UserError where a file is not as it was promoted."""
        for name, expected in dict(self.promotion.get("files", {})).items():
            path: Path | None = self.folder
            for part in str(name).split("/"):
                path = None if path is None else path_inside(path, part)
            if path is None:
                raise UserError(
                    f'"{in_one_line(str(name), 100)}", which {PROMOTION_FILE} names, is no file of {self.name}.'
                )
            try:
                found = digest_of(path)
            except OSError as error:
                raise UserError(
                    f"{path} cannot be read: {error.strerror or error}; {self.name} is no longer whole."
                ) from error
            if found != expected:
                raise UserError(f"{path} is not what was promoted: it was changed or is damaged.")


class ModelStore:
    """The versions of the model NAME in a folder of models.

    Raises UserError, from everything it does, where the folder cannot be read or written or the disk is full.
    """

    def __init__(self, models: Path, name: str) -> None:
        """Raises UserError for a name that is no plain name of a folder."""
        if not _NAME.fullmatch(name):
            raise UserError(
                f'"{name}" cannot be the name of a model: it may have letters, digits and any of "._+@=,-", and '
                "begins with a letter or digit, such as eurusd_5m."
            )
        self.models = models
        self.name = name
        self.folder = models / name

    @property
    def current(self) -> int | None:
        """The number of the version that is deployed, whether or not its folder is still there; None: none yet."""
        return current_number(self.folder)

    def deployed(self) -> Version | None:
        """The version that is deployed; None where there is none, or its folder was deleted."""
        number = self.current
        return None if number is None else self._find(number)

    def versions(self) -> list[Version]:
        """All that are there, by their numbers."""
        return [Version(number, self.folder / f"v{number}") for number in sorted(_numbers_in(self.folder))]

    def history(self) -> list[Switch]:
        """Every switch, the earliest first."""
        with _told(self.folder):
            return read_history(self.folder, self._known_current())

    def require_there(self) -> None:
        """Raise UserError where there is no model of this name."""
        if self._known_current() is None and not self.versions():
            known = model_names(self.models)
            meant = f" {nearest(self.name, known)}" if known else " Promote one by `ml-pipeline promote STUDY`."
            raise UserError(f"There is no model {self.name} in {self.models}.{meant}")

    def promote(
        self, fill: Callable[[Path], None], promotion: Mapping[str, Any], *, instead_of: int | None, **details: Any
    ) -> Version:
        """Make a new version, and switch `current` to it.

        fill: writes its files into a folder. promotion: what promotion.json says besides its number and the digests of
        its files, as it is when `fill` is done. instead_of: the version that it was compared with. details: for the
        history.
        Raises DeployedMeanwhile, with nothing left, where another version than `instead_of` is deployed by now.
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
        """Switch `current` to the version that was deployed before it, or to the one named.

        Raises UserError where there is none, where it is deployed already, or where it is no longer whole.
        """
        self.require_there()
        with _told(self.folder), alone(self.folder / _LOCK_FILE):
            now = self.current if to is None else self._known_current()  # which names no version: so it is mended
            version = self._earlier() if to is None else self._find(to)
            if version is None:
                there = ", ".join(each.name for each in self.versions()) or "none"
                raise UserError(f"There is no version v{to} of {self.name}; there are: {there}.")
            if version.number == now:
                raise UserError(f"{version.name} of {self.name} is deployed already.")
            version.require_whole()
            switch = new_switch("rollback", now, version.number)
            self._prepare_switch(switch)
            self._finish_switch()
            return switch

    def _known_current(self) -> int | None:
        """As `current`; None also where it names no version."""
        try:
            return self.current
        except UserError:
            return None

    def _earlier(self) -> Version:
        """The latest of those deployed before the current one that are still there."""
        now = self.current
        for number in reversed(deployed_in_turn(read_history(self.folder, now))):
            version = self._find(number)
            if number != now and version is not None:
                return version
        others = ", ".join(each.name for each in self.versions() if each.number != now)
        remedy = f"name one of {others} by --to" if others else "there is no other version"
        raise UserError(f"{self.name} had no version before v{now} that is still there; {remedy}.")

    def _find(self, number: int) -> Version | None:
        folder = path_inside(self.folder, f"v{number}")
        return Version(number, folder) if folder is not None and folder.is_dir() else None

    def _next_version(self) -> Version:
        """After every number that there is, or ever was deployed: who deletes v3 gets no other v3."""
        switches = read_history(self.folder, self.current)
        known = {*_numbers_in(self.folder), *(n for each in switches for n in (each.before, each.after) if n)}
        number = max(known, default=0) + 1
        return Version(number, self.folder / f"v{number}")

    def _prepare_switch(self, switch: Switch) -> None:
        """Write all that the switch needs, so that a full disk is noticed before it."""
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
        """Of promotions that were killed; `new_owned_folder` removes those that name their maker."""
        for left in self.folder.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):
                if not (left / "owner.json").exists() and time.time() - left.stat().st_mtime > _NOBODYS_S:
                    shutil.rmtree(left, ignore_errors=True)


def new_switch(action: Action, before: int | None, after: int, **details: Any) -> Switch:
    """A switch that happens now."""
    return Switch(action, datetime.now(UTC).isoformat(timespec="seconds"), before, after, details)


def read_history(model: Path, current: int | None) -> list[Switch]:
    """The switches of a model's folder, the earliest first; lines that are none, such as a torn one, are left out.

    current: the version that is deployed; where the last line tells of another one, a switch "found" follows it.
    Raises OSError where the file cannot be read.
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
    """The versions that led to the one that is deployed, each after the one that a rollback from it returns to.

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
    """The folder of models that a flag names; none: models/ beside checkpoints/."""
    return (runs_folder().parent / "models" if named is None else named.expanduser()).absolute()


def model_names(models: Path) -> list[str]:
    """The models in a folder, by name. Raises UserError where it cannot be read."""
    try:
        names = [folder.name for folder in folders_in(models) if _NAME.fullmatch(folder.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{models} cannot be read: {error.strerror}; name a folder of models.") from error
    return [name for name in names if _numbers_in(models / name) or os.path.lexists(models / name / CURRENT)]


def write_link(path: Path, number: int) -> None:
    """Make a symbolic link to a version or, where the system has none, a file with its name in it."""
    path.unlink(missing_ok=True)
    try:
        os.symlink(f"v{number}", path, target_is_directory=True)
    except (NotImplementedError, PermissionError):  # Windows without the right to make links
        path.write_text(f"v{number}\n", encoding="utf-8")


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Within the block, what a disk or a folder refuses is one sentence, a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The model in {folder} cannot be read or written: {error.strerror or error}; what is deployed stays as it "
            "was."
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
    """SHA-256 of a regular file. Raises OSError where it cannot be read."""
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
    """Take away the right to write; once it has its place, since a folder that may not be written cannot be moved."""
    for path in folder.rglob("*"):
        path.chmod(_READ_ONLY_FILE if stat.S_ISREG(path.stat().st_mode) else _READ_ONLY_FOLDER)
    folder.chmod(_READ_ONLY_FOLDER)
