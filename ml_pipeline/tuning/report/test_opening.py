"""The record of every look at the test split; each opening is recorded before the evaluation begins.

It is kept twice: as an attribute of the study, so that every machine that shares the storage sees it, and as a line of
test_opened.jsonl in the study's folder, so that it outlives the storage. Readers merge the two.
"""

import contextlib
import json
import os
import re
import socket
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna

from ml_pipeline import __version__
from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.sinks import read_lines
from ml_pipeline.runtime.files import alone
from ml_pipeline.runtime.process_identity import identity_from, is_alive, this_process
from ml_pipeline.trading.evaluation.looks import Look, read_looks
from ml_pipeline.tuning.storage.optuna_internals import engine_of, journal_of
from ml_pipeline.tuning.study_files import identity_of

ATTRIBUTE = "test_opened"
"""Attribute of the study: a list of openings, the earliest first."""
OPENINGS_FILE = "test_opened.jsonl"
WINNER_TEST_FOLDER = "winner_test"
"""In a study's folder: the report of the first opening; the second one is winner_test-2."""
_REPORT_FOLDER = re.compile(rf"{WINNER_TEST_FOLDER}(-[1-9]\d{{0,8}})?")
_LOCK_SUFFIX = ".test_opening"
_LOCK_FILE = f"study{_LOCK_SUFFIX}"


@dataclass(frozen=True, kw_only=True)
class Opening:
    """One look at held-out data.

    when: ISO 8601, UTC. trial: the trial whose policy was evaluated. version: of this package. by: host and pid.
    process: its exact identity. checkpoint: SHA-256 of the evaluated file. folder: of its report, in the study's
    folder. result: its figures; None until the evaluation has ended.
    """

    when: str
    trial: int
    version: str
    by: str
    process: tuple[Any, ...] = ()
    checkpoint: str = ""
    folder: str = ""
    result: Mapping[str, Any] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the process that opened the test may still be evaluating; True if that is unknown."""
        if self.result is not None:
            return False
        try:
            return is_alive(identity_from(*self.process)) is not False
        except (TypeError, ValueError):
            return True

    def as_look(self, study_name: str) -> Look:
        """The opening as a look at the data; it stays one look if another process finishes the evaluation."""
        return Look(f"report of the study {study_name} for trial {self.trial}", self.when, self.by)

    def same_look(self, other: "Opening") -> bool:
        """Whether both record the same look at the data."""
        return (self.when, self.trial, self.by) == (other.when, other.trial, other.by)


def read_openings(study: optuna.Study, study_folder: Path) -> list[Opening]:
    """Every opening recorded in the study or its folder, the earliest first."""
    openings = _from_data(study.user_attrs.get(ATTRIBUTE))
    for line in read_lines(study_folder / OPENINGS_FILE):
        with contextlib.suppress(ValueError):  # a torn line
            openings += [each for each in _from_data([json.loads(line)]) if not any(map(each.same_look, openings))]
    return sorted(openings, key=lambda opening: opening.when)


def looks_at_test(study: optuna.Study, study_folder: Path, openings: Sequence[Opening]) -> list[Look]:
    """Every look at the test part of the study's data, by any program in any place, the earliest first."""
    task = identity_of(study).get("task")
    data = task.get("data") if isinstance(task, dict) else None
    fingerprints = [each for each in (data.values() if isinstance(data, dict) else [data]) if isinstance(each, str)]
    folders = (folder for folder in study_folder.glob("trial-*") if not folder.is_symlink())
    looks = {(look.when, look.by): look for look in read_looks(fingerprints, folders)}
    for opening in openings:
        looks.setdefault((opening.when, opening.by), opening.as_look(study.study_name))
    return sorted(looks.values(), key=lambda look: look.when)


def record_opening(
    study: optuna.Study, study_folder: Path, *, trial: int, checkpoint: str, expected: Sequence[Opening], folder: str
) -> Opening | None:
    """Record that the test is opened now, for this trial; None if another process has opened it in the meantime.

    expected: the openings that the caller has read. Raises UserError if the record cannot be written; the test then
    stays closed.
    """
    process = this_process()
    opening = Opening(
        when=datetime.now(UTC).isoformat(timespec="microseconds"),
        trial=trial,
        version=__version__,
        by=f"{socket.gethostname()}, process {os.getpid()}",
        process=tuple(process),
        checkpoint=checkpoint,
        folder=folder,
    )
    try:
        with _one_at_a_time(study, study_folder):
            known = read_openings(study, study_folder)
            if len(known) != len(expected):
                return None
            _append_line(study_folder / OPENINGS_FILE, opening)
            study.set_user_attr(ATTRIBUTE, [asdict(each) for each in (*known, opening)])
    except OSError as error:
        raise UserError(
            f"{study_folder / OPENINGS_FILE} cannot be written: {error.strerror}; the test split stays closed until "
            "its opening can be recorded."
        ) from error
    return opening


def take_over(study: optuna.Study, study_folder: Path, opening: Opening) -> bool:
    """Let this process finish the evaluation of a dead process; False if another process already does."""
    with _one_at_a_time(study, study_folder):
        openings = read_openings(study, study_folder)
        current = next((each for each in openings if each.same_look(opening)), None)
        if current is None or current.result is not None or current.is_under_way:
            return False
        ours = replace(current, process=tuple(this_process()))
        study.set_user_attr(ATTRIBUTE, [asdict(ours if each is current else each) for each in openings])
    return True


def record_result(study: optuna.Study, study_folder: Path, opening: Opening, result: Mapping[str, Any]) -> Opening:
    """Add the evaluation's figures to the record of its opening; return that record."""
    told = replace(opening, result=dict(result))
    with _one_at_a_time(study, study_folder):
        openings = read_openings(study, study_folder)
        study.set_user_attr(ATTRIBUTE, [asdict(told if each.same_look(told) else each) for each in openings])
    return told


def _from_data(data: object) -> list[Opening]:
    """The openings in a list of objects; objects without a time and a trial are skipped."""
    found = []
    for each in data if isinstance(data, list) else []:
        if not isinstance(each, dict) or not isinstance(each.get("trial"), int):
            continue
        texts = {name: str(each.get(name) or "") for name in ("when", "version", "by", "checkpoint", "folder")}
        result = each.get("result")
        if _REPORT_FOLDER.fullmatch(texts["folder"]) is None:  # other programs can write the storage
            texts["folder"] = WINNER_TEST_FOLDER
        found.append(
            Opening(
                trial=each["trial"],
                process=tuple(each.get("process") or ()),
                result=result if isinstance(result, dict) else None,
                **texts,
            )
        )
    return found


def _append_line(path: Path, opening: Opening) -> None:
    """Append the opening as a line, and wait until it is on disk."""
    line = {name: value for name, value in asdict(opening).items() if name != "result"}
    with path.open("a+b") as file:
        torn = file.tell() > 0 and _last_byte(file) != b"\n"
        file.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))


@contextlib.contextmanager
def _one_at_a_time(study: optuna.Study, study_folder: Path) -> Iterator[None]:
    """Within the block, no other process changes this study's record, on any machine that shares its storage."""
    journal = journal_of(study)
    beside = study_folder / _LOCK_FILE if journal is None else journal.with_name(journal.name + _LOCK_SUFFIX)
    with alone(beside), _alone_in_database(study):
        yield


@contextlib.contextmanager
def _alone_in_database(study: optuna.Study) -> Iterator[None]:
    """A lock in PostgreSQL until the block, or its connection, ends; other storages are files and need none."""
    engine = engine_of(study)
    if engine is None or engine.dialect.name != "postgresql":
        yield
        return
    import sqlalchemy  # an extra: only a database needs it

    key = zlib.crc32(f"ml-pipeline test of {study.study_name}".encode())
    with engine.connect() as connection, connection.begin():
        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
        yield
