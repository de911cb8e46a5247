"""Opens the storage of a study: a journal file, in its folder or elsewhere, or a PostgreSQL database.

Processes that open the same storage, on one machine or several, work on one study. `open_study` opens an existing study
by name.
"""

import re
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage, JournalStorage

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.runs.folder import refuse_links
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.tuning.storage.journal import JournalFile
from ml_pipeline.tuning.study_files import JOURNAL_FILE, STUDY_FILE

_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_EXPECTED = "a journal file such as /shared/study.log, or a database such as postgresql://user@host/tuning"


def _never() -> bool:
    return False


def open_storage(
    named: str | None,
    study_folder: Path,
    say: Callable[[str], None],
    *,
    wait: bool = False,
    stopped: Callable[[], bool] = _never,
) -> BaseStorage:
    """The storage of a study, for `optuna.create_study` or `optuna.load_study`; several processes may open it at once.

    named: a journal file or the URL of a PostgreSQL database; None: the journal in the study's folder, which is created
    if it is missing. say: reports repairs, and outages of a database. wait: whether to wait for an unavailable database
    now, as a worker does that is restarted in the middle of a study. stopped: whether calls that wait for a database
    should give up with StorageAway.
    Raises UserError if the storage does not exist, cannot be written, or is of an unsupported kind.
    """
    if named is None:
        return _open_journal(_in_new_folder(study_folder), say)
    url = _URL.match(named)
    if url is None:
        return _open_journal(_named_journal(named), say)
    kind = url[1].lower()
    if kind in _POSTGRES:
        from ml_pipeline.tuning.storage.postgres import open_postgres  # needs an extra

        return open_postgres(named, say, shown=shown_storage(named, study_folder), wait=wait, stopped=stopped)
    if kind.startswith("sqlite"):
        raise UserError(
            "A study cannot be stored in SQLite: several workers that write at once lock each other out. Leave "
            f"--storage out for a journal in the study's folder, or name {_EXPECTED}."
        )
    raise UserError(f'Storage "{kind}" is unknown; expected {_EXPECTED}.')


def shown_storage(named: str | None, study_folder: Path) -> str:
    """A storage for printing and logging, without its password.

    >>> shown_storage("postgresql://ann:secret@db/tuning", Path("study"))
    'postgresql://ann:***@db/tuning'
    >>> shown_storage(None, Path("study"))
    'study/journal.log'
    """
    if named is None:
        return (study_folder / JOURNAL_FILE).as_posix()
    shown = re.sub(r"^([^/?#]*://[^/?#@:]*):.*@", r"\1:***@", named)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", shown)


def _open_journal(path: Path, say: Callable[[str], None]) -> JournalStorage:
    if path.exists() and not path.is_file():  # reading a pipe may block, and a device may have no end
        raise UserError(f"{shown_path(path)} is not a regular file; expected {_EXPECTED}.")
    try:
        return JournalStorage(JournalFile(path, say))
    except UserError:  # also a ValueError
        raise
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, DuplicatedStudyError) as error:
        raise UserError(
            f"The journal {shown_path(path)} cannot be used: its records are not from this version of Optuna; restore "
            "a copy, or name a new file."
        ) from error


def _in_new_folder(study_folder: Path) -> Path:
    try:
        study_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The study's folder {shown_path(study_folder)} cannot be created: {error.strerror}; choose another --root."
        ) from error
    return study_folder / JOURNAL_FILE


def _named_journal(named: str) -> Path:
    if not named.strip():
        raise UserError(f"--storage is empty; expected {_EXPECTED}, or leave it out.")
    path = Path(named).expanduser().absolute()
    try:
        is_there = path.exists()
    except OSError as error:
        raise UserError(f"--storage {in_one_line(named)} cannot be used: {error.strerror}.") from error
    if path.is_dir():
        raise UserError(f"--storage {named} is a folder; name a file in it, such as {Path(named) / JOURNAL_FILE}.")
    if is_there and not path.is_file():
        raise UserError(f"--storage {named} is not a regular file; expected {_EXPECTED}.")
    if not path.parent.is_dir():
        raise UserError(
            f"--storage {named} is in a folder that does not exist: {path.parent}; create it, mount its disk, or name "
            "another file."
        )
    return path


def open_study(name: str, root: Path, *, storage: str | None, say: Callable[[str], None]) -> tuple[optuna.Study, Path]:
    """The study and its folder in `root`; nothing is created. storage: as for `open_storage`.

    Raises UserError if there is no study of this name, or a file of its folder is a link.
    """
    folder = root / name
    if path_inside(root, name) is None or name.startswith("."):
        raise UserError(f'"{in_one_line(name)}" is not the name of a study; name a folder in --root, not a path.')
    if storage is None and not (folder / JOURNAL_FILE).is_file():
        raise UserError(_no_study(name, _studies_in(root), f"in {shown_path(root)}", has_folder=folder.is_dir()))
    if folder.is_dir():
        refuse_links(folder)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = open_storage(storage, folder, say)
    try:
        return optuna.load_study(study_name=name, storage=opened), folder
    except KeyError:
        raise UserError(_no_study(name, optuna.get_all_study_names(opened), "in this storage")) from None


def _studies_in(root: Path) -> list[str]:
    return [path.parent.name for pattern in (JOURNAL_FILE, STUDY_FILE) for path in root.glob(f"*/{pattern}")]


def _no_study(name: str, known: list[str], where: str, *, has_folder: bool = False) -> str:
    if has_folder and name in known:
        return f"The study {name} {where} has no {JOURNAL_FILE}; name its storage with --storage."
    meant = nearest(name, set(known)) if known else "Start one with `ml-pipeline tune`, or name another --root."
    return f"There is no study {name} {where}. {meant}"
