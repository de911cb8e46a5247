"""What `--storage` may name, and the sentence for all else."""

import errno
import os
import pickle
import sys
from pathlib import Path

import optuna
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.storage.journal import JournalFile
from ml_pipeline.tuning.storage.open_storage import open_storage, shown_storage


def test_the_default_is_a_journal_in_the_studys_folder(tmp_path: Path) -> None:
    optuna.create_study(storage=open_storage(None, tmp_path / "new" / "study", pytest.fail), study_name="s")
    assert (tmp_path / "new" / "study" / "journal.log").is_file()
    again = open_storage(None, tmp_path / "new" / "study", pytest.fail)
    assert [study.study_name for study in again.get_all_studies()] == ["s"]


def test_a_named_journal_lies_where_it_is_named(tmp_path: Path) -> None:
    optuna.create_study(storage=open_storage(str(tmp_path / "shared.log"), tmp_path / "study", pytest.fail))
    assert (tmp_path / "shared.log").stat().st_size > 0
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("sqlite:///study.db", "cannot be stored in SQLite: several workers that write at once lock each other out"),
        ("mysql://user@host/db", 'Storage "mysql" is unknown; expected a journal file such as'),
        ("", "--storage is empty"),
        ("{tmp}", "is a folder; name a file in it"),
        ("{tmp}/not/there.log", "is in a folder that does not exist: {tmp}/not; create it, mount its disk"),
        ("/dev/null", "is not a regular file"),
        ("x" * 5000, "cannot be used: File name too long"),
        ("/etc/passwd/study.log", "is in a folder that does not exist"),
        ("postgresql://u:secret@host:port/db", "--storage is not the URL of a database"),
    ],
)
def test_storage_that_cannot_be_used_is_one_sentence(named: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        open_storage(named.format(tmp=tmp_path), tmp_path / "study", pytest.fail)
    assert sentence.format(tmp=tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r'needs the extra "postgres": pip install -e "\.\[postgres\]"'):
        open_storage("postgresql://host/db", tmp_path, pytest.fail)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.EROFS, "cannot be written: Read-only file system; a study writes to it all the time"),
        (errno.EACCES, "cannot be written: Permission denied"),
        (errno.ENOLCK, "its file system has no locks between processes; name a journal on another disk"),
    ],
)
def test_a_journal_that_cannot_be_written_or_locked_is_one_sentence(
    code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("ml_pipeline.tuning.storage.journal._lock", refuse)
    with pytest.raises(UserError, match=sentence):
        open_storage(None, tmp_path, pytest.fail)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study(storage=open_storage(None, tmp_path, pytest.fail), study_name="s")
    before = (tmp_path / "journal.log").read_bytes()

    def write_a_part(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("ml_pipeline.tuning.storage.journal._write_all", write_a_part)
        with pytest.raises(UserError, match="No space left on device; make room and start again"):
            study.ask()
    assert (tmp_path / "journal.log").read_bytes() == before
    study.tell(study.ask(), 1.0)
    assert study.best_value == 1.0


def test_a_journal_deleted_in_mid_study_does_not_come_back_empty(tmp_path: Path) -> None:
    study = optuna.create_study(storage=open_storage(None, tmp_path, pytest.fail), study_name="s")
    (tmp_path / "journal.log").unlink()
    with pytest.raises(UserError, match=r"journal.log is missing: it was deleted or moved, or its disk is gone"):
        study.ask()
    assert not (tmp_path / "journal.log").exists()


def test_a_journal_goes_to_another_process_whole(tmp_path: Path) -> None:
    said: list[str] = []
    storage = open_storage(None, tmp_path, said.append)
    optuna.create_study(storage=storage, study_name="s")
    copied = pickle.loads(pickle.dumps(storage))
    assert [study.study_name for study in copied.get_all_studies()] == ["s"]
    assert isinstance(copied._backend, JournalFile)


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("postgresql://ann:secret@db:5432/tuning", "postgresql://ann:***@db:5432/tuning"),
        ("postgresql://ann:se@cr/et@db/tuning", "postgresql://ann:***@db/tuning"),
        (
            "postgresql:///tuning?user=ann&password=secret&host=/run",
            "postgresql:///tuning?user=ann&password=***&host=/run",
        ),
        ("postgresql://ann@db/tuning", "postgresql://ann@db/tuning"),
        ("/shared/a:b@c/study.log", "/shared/a:b@c/study.log"),
        (None, "study/journal.log"),
    ],
)
def test_a_storage_is_shown_without_its_password(named: str | None, shown: str) -> None:
    assert shown_storage(named, Path("study")) == shown


def test_a_journal_with_a_damaged_date_is_one_sentence(tmp_path: Path) -> None:
    study = optuna.create_study(storage=open_storage(None, tmp_path, pytest.fail))
    study.ask()
    journal = tmp_path / "journal.log"
    journal.write_bytes(journal.read_bytes().replace(b'"datetime_start":"20', b'"datetime_start":"xx'))
    with pytest.raises(UserError, match="its records are not from this version of Optuna"):
        open_storage(None, tmp_path, pytest.fail)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_in_place_of_the_journal_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.log")
    with pytest.raises(UserError, match="is not a regular file"):
        open_storage(None, tmp_path, pytest.fail)


@pytest.mark.timeout(20)
def test_a_file_that_is_too_large_for_a_journal_is_refused_and_not_read(tmp_path: Path) -> None:
    with (tmp_path / "journal.log").open("wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(UserError, match=r"journal\.log cannot be used: it is larger than 4 GiB\."):
        open_storage(None, tmp_path, pytest.fail)
