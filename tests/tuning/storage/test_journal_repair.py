"""A journal whose end was torn by a power cut opens again, with all whole lines, and says what is lost."""

import json
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.storage import journal as journal_module
from ml_pipeline.tuning.storage.journal import JournalFile, record_in
from ml_pipeline.tuning.storage.open_storage import open_storage

optuna.logging.set_verbosity(optuna.logging.WARNING)


def _write_study(path: Path, n_trials: int = 3) -> bytes:
    study = optuna.create_study(
        storage=open_storage(str(path), path.parent, pytest.fail), study_name="s", direction="maximize"
    )
    for number in range(n_trials):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.report(0.5, 10)
        study.tell(trial, float(number))
    return path.read_bytes()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a journal of three finished trials."""
    return _write_study(tmp_path_factory.mktemp("whole") / "journal.log")


def _values(path: Path) -> list[float | None]:
    """What Optuna's own reader finds, apart from ours."""
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.load_study(storage=storage, study_name="s")
    return [trial.value for trial in study.trials]


def test_a_journal_cut_at_any_byte_of_its_last_lines_keeps_every_whole_line(journal: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    added = {"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr": {"a": 1}}
    for cut in range(journal.rindex(b'{"op_code":4'), len(journal)):
        path.write_bytes(journal[:cut])
        said: list[str] = []
        file = JournalFile(path, said.append)
        whole, torn = journal[:cut].rsplit(b"\n", 1)
        if record_in(torn) is not None:  # whole but for its line end
            assert path.read_bytes() == journal[: cut + 1]
            assert "nothing is lost" in said[0]
        else:
            assert path.read_bytes() == whole + b"\n"
            assert len(said) == bool(torn)
        copies = list(tmp_path.glob("journal.log.torn-*"))
        assert [each.read_bytes() for each in copies] == [torn] * ("are saved in" in "".join(said))
        for each in copies:
            each.unlink()
        expected = [json.loads(line) for line in path.read_bytes().splitlines()]
        file.append_logs([added])
        assert list(JournalFileBackend(str(path)).read_logs(0)) == [*expected, added]


@given(zeros=st.integers(1, 5000), kept=st.integers(0, 80), ends=st.booleans())
def test_zeros_that_a_file_system_left_at_the_end_are_cut_off(
    journal: bytes, tmp_path_factory: pytest.TempPathFactory, zeros: int, kept: int, ends: bool
) -> None:
    *lines, last = journal.splitlines(keepends=True)
    path = tmp_path_factory.mktemp("zeros") / "journal.log"
    path.write_bytes(b"".join(lines) + last[: min(kept, len(last) - 2)] + b"\0" * zeros + b"\n" * ends)
    said: list[str] = []
    open_storage(str(path), path.parent, said.append)
    assert path.read_bytes() == b"".join(lines)
    assert len(said) == 1


def test_the_notice_says_what_is_lost_and_where_it_is_kept(journal: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(journal[:-5])
    said: list[str] = []
    open_storage(None, tmp_path, said.append)
    (kept,) = tmp_path.glob("journal.log.torn-*")
    assert len(said) == 1
    assert "the state of a trial is lost" in said[0]
    assert kept.name in said[0]
    assert kept.read_bytes() == journal[:-5].rsplit(b"\n", 1)[1]


def test_a_torn_line_is_cut_off_before_the_next_line_is_written(tmp_path: Path) -> None:
    _write_study(tmp_path / "journal.log")
    said: list[str] = []
    study = optuna.load_study(storage=open_storage(None, tmp_path, said.append), study_name="s")
    with open(tmp_path / "journal.log", "ab") as file:  # another writer was killed
        file.write(b'{"op_code":4,"worker')
    trial = study.ask()
    study.tell(trial, 4.0)
    assert _values(tmp_path / "journal.log") == [0.0, 1.0, 2.0, 4.0]
    assert "a new trial is lost" in said[0]


def test_a_line_damaged_in_the_middle_is_refused_with_its_number(journal: bytes, tmp_path: Path) -> None:
    lines = journal.splitlines(keepends=True)
    lines[3] = lines[3][:20] + lines[4]
    damaged = b"".join(lines)
    (tmp_path / "journal.log").write_bytes(damaged)
    with pytest.raises(UserError, match=r"damaged in line 4, which is not a record"):
        open_storage(None, tmp_path, pytest.fail)
    assert (tmp_path / "journal.log").read_bytes() == damaged


def test_a_line_damaged_while_a_study_goes_on_is_told_with_its_number(tmp_path: Path) -> None:
    n_lines = _write_study(tmp_path / "journal.log").count(b"\n")
    study = optuna.load_study(storage=open_storage(None, tmp_path, pytest.fail), study_name="s")
    with open(tmp_path / "journal.log", "ab") as file:
        file.write(b"{}}\n" + json.dumps({"op_code": 4, "worker_id": "another"}).encode() + b"\n")
    with pytest.raises(UserError, match=f"damaged in line {n_lines + 1}, "):
        study.get_trials()


@pytest.mark.parametrize(
    "content", [b"time,open,high\n2020,1,2", b"a note without a line end", b'{"a": 1}\n', b'{"op_code":99}\n{}\n']
)
def test_another_file_is_refused_and_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"prices.csv is not an Optuna journal: its first line begins with"):
        open_storage(str(tmp_path / "prices.csv"), tmp_path, pytest.fail)
    assert (tmp_path / "prices.csv").read_bytes() == content


@pytest.mark.parametrize("record", [{"op_code": 77}, {"op_code": 5, "trial_id": 3}, {"op_code": 0}])
def test_records_of_another_optuna_are_refused(record: dict[str, int], journal: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal.log").write_bytes(journal + json.dumps({**record, "worker_id": "x"}).encode() + b"\n")
    if record == {"op_code": 5, "trial_id": 3}:  # of a trial that is not there: Optuna passes over it
        open_storage(None, tmp_path, pytest.fail)
        return
    with pytest.raises(UserError, match="its records are not from this version of Optuna"):
        open_storage(None, tmp_path, pytest.fail)


def test_a_whole_journal_is_read_as_optuna_reads_it(journal: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal.log").write_bytes(journal)
    study = optuna.load_study(storage=open_storage(None, tmp_path, pytest.fail), study_name="s")
    assert [trial.value for trial in study.trials] == _values(tmp_path / "journal.log") == [0.0, 1.0, 2.0]
    assert all(trial.state is TrialState.COMPLETE for trial in study.trials)
    assert (tmp_path / "journal.log").read_bytes() == journal


def test_a_journal_that_ends_in_gigabytes_without_a_line_is_refused_and_left_as_it_is(
    journal: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_LONGEST_LINE", 1 << 17)
    path = tmp_path / "journal.log"
    path.write_bytes(journal)
    with path.open("r+b") as file:
        file.truncate(1 << 20)  # zeros
    with pytest.raises(
        UserError, match=r"The last line of the journal .* is longer than 0\.131 MB, .* delete the line"
    ):
        JournalFile(path, pytest.fail)
    assert path.stat().st_size == 1 << 20
