"""Who looked at the test split: written down before it is looked at, once, and never forgotten."""

import json
import threading
from dataclasses import asdict, replace

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import ProcessIdentity, this_process
from ml_pipeline.tuning.report.test_opening import (
    ATTRIBUTE,
    OPENINGS_FILE,
    Opening,
    read_openings,
    record_opening,
    record_result,
    take_over,
)
from ml_pipeline.tuning.storage.open_storage import open_storage
from tests.tuning.postgres_server import find_programs, postgres_server
from tests.tuning.written_studies import new_study

needs_postgres = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed")


def opened(study, folder, *, trial=3, expected=()):
    return record_opening(study, folder, trial=trial, checkpoint="ab", expected=expected, folder="winner_test")


def test_an_opening_is_told_by_the_study_and_by_a_line_in_its_folder(tmp_path):
    study = new_study()
    opening = opened(study, tmp_path)
    assert [each["trial"] for each in study.user_attrs[ATTRIBUTE]] == [3]
    (line,) = (tmp_path / OPENINGS_FILE).read_text().splitlines()
    told = json.loads(line)
    assert told["trial"] == 3
    assert told["when"] == opening.when
    assert told["version"]
    assert told["by"].startswith(this_process().host)
    assert read_openings(study, tmp_path) == [opening]


def test_the_result_is_added_to_its_opening_alone(tmp_path):
    study = new_study()
    first = opened(study, tmp_path)
    second = opened(study, tmp_path, trial=8, expected=[first])
    record_result(study, tmp_path, second, {"sharpe": 0.25})
    assert [each.result for each in read_openings(study, tmp_path)] == [None, {"sharpe": 0.25}]


@pytest.mark.parametrize("lost", ["storage", "folder"])
def test_an_opening_outlives_the_loss_of_either_record(tmp_path, lost):
    study = new_study()
    opening = opened(study, tmp_path)
    if lost == "storage":
        study = new_study()
    else:
        (tmp_path / OPENINGS_FILE).unlink()
    (found,) = read_openings(study, tmp_path)
    assert found.same_look(opening)
    assert opened(study, tmp_path, trial=9) is None


def test_another_machine_sees_it_through_the_storage(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    journal = str(tmp_path / "journal.log")
    opening = opened(new_study(storage=JournalStorage(JournalFileBackend(journal))), here)
    study = optuna.load_study(study_name="first", storage=JournalStorage(JournalFileBackend(journal)))
    assert read_openings(study, there) == [opening]
    assert opened(study, there) is None


def test_of_many_that_open_at_once_one_does(tmp_path):
    journal = str(tmp_path / "journal.log")
    new_study(storage=JournalStorage(JournalFileBackend(journal)))
    n, found = 4, []
    barrier = threading.Barrier(n)

    def open_it(k):
        folder = tmp_path / f"machine-{k}"
        folder.mkdir()
        study = optuna.load_study(study_name="first", storage=JournalStorage(JournalFileBackend(journal)))
        barrier.wait()
        found.append(opened(study, folder, trial=k))

    threads = [threading.Thread(target=open_it, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(opening is not None for opening in found) == 1
    assert list(tmp_path.glob("*.test_opening")) == []


def test_a_torn_line_takes_nothing_with_it(tmp_path):
    study = new_study()
    (tmp_path / OPENINGS_FILE).write_text('{"when": "2026-01-01T00:00:00+00:00", "trial": 1, "by": "me"}\n{"whe')
    assert [each.trial for each in read_openings(study, tmp_path)] == [1]
    opened(study, tmp_path, expected=read_openings(study, tmp_path))
    assert [each.trial for each in read_openings(new_study(), tmp_path)] == [1, 3]


@pytest.mark.parametrize("data", [7, "x", [1], [{"trial": "3"}], [{}], {"trial": 1}])
def test_what_is_no_record_is_none(tmp_path, data):
    study = new_study()
    study.set_user_attr(ATTRIBUTE, data)
    assert read_openings(study, tmp_path) == []


def test_a_folder_that_cannot_be_written_keeps_the_test_closed(tmp_path):
    study = new_study()
    (tmp_path / OPENINGS_FILE).mkdir()
    with pytest.raises(UserError, match=r"test_opened\.jsonl cannot be (written|read).*"):
        opened(study, tmp_path)
    assert ATTRIBUTE not in study.user_attrs


def test_an_evaluation_whose_process_died_is_taken_over_by_one(tmp_path):
    study = new_study()
    opening = opened(study, tmp_path)
    assert opening.is_under_way
    assert not take_over(study, tmp_path, opening)
    dead = replace(opening, process=tuple(this_process()._replace(started="0")))
    study.set_user_attr(ATTRIBUTE, [asdict(dead)])
    (dead,) = read_openings(study, tmp_path)
    assert not dead.is_under_way
    assert take_over(study, tmp_path, dead)
    assert not take_over(study, tmp_path, dead)


def test_a_process_of_another_machine_may_still_be_at_it():
    elsewhere = ProcessIdentity("elsewhere", 1, "0", None)
    opening = Opening(when="2026", trial=1, version="0", by="elsewhere", process=tuple(elsewhere))
    assert opening.is_under_way
    assert replace(opening, process=("broken",)).is_under_way
    assert not replace(opening, result={}).is_under_way


def test_a_record_names_no_folder_outside_the_study(tmp_path):
    study = new_study()
    for name in ("../x", "/etc", "winner_test/..", "", "winner_test-2"):
        study.set_user_attr(ATTRIBUTE, [{"when": "2026", "trial": 0, "folder": name}])
        (opening,) = read_openings(study, tmp_path)
        assert opening.folder == ("winner_test-2" if name == "winner_test-2" else "winner_test")


@pytest.mark.system
@needs_postgres
def test_of_many_machines_on_one_postgresql_one_opens(tmp_path):
    n, found = 4, []
    barrier = threading.Barrier(n)
    with postgres_server() as server:
        storage = open_storage(server.url, tmp_path, print)
        new_study(storage=storage)

        def open_it(k):
            folder = tmp_path / f"machine-{k}"
            folder.mkdir()
            study = optuna.load_study(study_name="first", storage=open_storage(server.url, folder, print))
            barrier.wait()
            found.append(opened(study, folder, trial=k))

        threads = [threading.Thread(target=open_it, args=(k,)) for k in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(opening is not None for opening in found) == 1
        seen = optuna.load_study(study_name="first", storage=storage)
        assert len(read_openings(seen, tmp_path)) == 1
