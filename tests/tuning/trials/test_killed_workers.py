"""Workers killed at random moments, one after another, leave a study with the exact number of trials."""

import collections
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ml_pipeline.tuning.storage.journal import JournalFile
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import HEARTBEAT_FILE
from ml_pipeline.tuning.trials.lost_trials import read_beat
from tests.tuning.postgres_server import PostgresServer, find_programs, postgres_server
from tests.tuning.trials.killed_workers import STEPS

needs_postgres = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed")


def _begin_study(named: str | None, folder: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(storage=open_storage(named, folder, pytest.fail), study_name="s", direction="maximize")


def _run_workers(named: str | None, folder: Path, **options: int) -> tuple[dict[str, Any], str]:
    """What the workers' process counted, and what they said."""
    command = [sys.executable, "-m", "tests.tuning.trials.killed_workers", str(folder)]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command += ["--storage", named] if named else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return json.loads(done.stdout), done.stderr


def _count(trials: list[optuna.trial.FrozenTrial]) -> collections.Counter[TrialState]:
    return collections.Counter(trial.state for trial in trials if "void" not in trial.user_attrs)


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="forks")
def test_a_study_whose_workers_are_killed_30_times_has_the_exact_number_of_trials(tmp_path: Path) -> None:
    _begin_study(None, tmp_path)
    told, said = _run_workers(None, tmp_path, trials=60, workers=3, kills=30)
    assert told == {"killed": 30, "statuses": [0, 0, 0]}
    assert "Traceback" not in said
    # Optuna's own reader finds every line whole.
    trials = optuna.load_study(
        storage=JournalStorage(JournalFileBackend(str(tmp_path / "journal.log"))), study_name="s"
    ).trials
    counted = _count(trials)
    assert counted[TrialState.COMPLETE] == 60
    assert counted[TrialState.RUNNING] == 0
    retries = [trial for trial in trials if "retry_history" in trial.user_attrs]
    assert retries, "some were killed in a trial"
    for trial in retries:
        if trial.state is TrialState.COMPLETE and trial.user_attrs.get("folders"):
            assert (tmp_path / trial.user_attrs["folders"][0] / "steps").read_text() == str(STEPS)
    for path in tmp_path.glob(f"*/{HEARTBEAT_FILE}"):  # whoever found it lost was killed before removing this
        beat = read_beat(path.parent)
        assert beat is not None
        assert trials[beat.trial].state is TrialState.FAIL


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.mark.system
@needs_postgres
def test_four_killed_processes_on_a_postgresql_have_the_exact_number_of_trials(
    server: PostgresServer, tmp_path: Path
) -> None:
    study = _begin_study(server.url, tmp_path)
    told, said = _run_workers(server.url, tmp_path, trials=20, workers=4, kills=8)
    assert told == {"killed": 8, "statuses": [0, 0, 0, 0]}
    assert "Traceback" not in said
    counted = _count(study.trials)
    assert counted[TrialState.COMPLETE] == 20
    assert counted[TrialState.RUNNING] == 0
    optuna.delete_study(study_name="s", storage=study._storage)


@pytest.mark.system
@needs_postgres
def test_workers_wait_for_a_postgresql_that_is_stopped_and_started_again(
    server: PostgresServer, tmp_path: Path
) -> None:
    study = _begin_study(server.url, tmp_path)
    found: list[tuple[dict[str, Any], str]] = []
    workers = threading.Thread(target=lambda: found.append(_run_workers(server.url, tmp_path, trials=24, workers=4)))
    workers.start()
    while sum(trial.state is TrialState.COMPLETE for trial in study.get_trials()) < 5:
        time.sleep(0.01)
    server.stop()
    time.sleep(1)  # an outage has a length; nothing is waited for
    server.start()
    workers.join()
    ((told, said),) = found
    assert told == {"killed": 0, "statuses": [0, 0, 0, 0]}
    assert "Traceback" not in said
    lines = said.splitlines()
    assert 1 <= sum("is unavailable (" in line for line in lines) <= 4, "each worker says it once"
    assert sum("; continuing." in line for line in lines) == sum("is unavailable (" in line for line in lines)
    counted = _count(study.trials)
    assert counted[TrialState.COMPLETE] == 24
    assert counted[TrialState.RUNNING] == 0
    assert server.password not in said
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and server.password.encode() in path.read_bytes()
    ]
    optuna.delete_study(study_name="s", storage=study._storage)


def test_a_writer_killed_while_it_holds_the_lock_stops_nobody(tmp_path: Path) -> None:
    study = _begin_study(None, tmp_path)
    code = (
        "import sys, time, pathlib; from ml_pipeline.tuning.storage.journal import JournalFile\n"
        "with JournalFile(pathlib.Path(sys.argv[1]), print)._locked(): print('has it', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "journal.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        asked = threading.Thread(target=study.ask)
        asked.start()
        asked.join(0.2)
        assert asked.is_alive(), "the lock is held"
        process.kill()
        asked.join()
    assert len(study.trials) == 1


def test_a_lock_file_that_optuna_left_behind_stops_nobody(tmp_path: Path) -> None:
    study = _begin_study(None, tmp_path)
    (tmp_path / "journal.log.lock").symlink_to(tmp_path / "journal.log")
    began = threading.Thread(target=study.ask)
    began.start()
    began.join(20)  # Optuna's own lock waits for 30 s
    assert not began.is_alive()


def test_writers_of_one_process_take_turns(tmp_path: Path) -> None:
    files = [JournalFile(tmp_path / "journal.log", pytest.fail) for _ in range(4)]
    record = {"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr": {"text": "x" * 20_000}}
    threads = [
        threading.Thread(target=lambda file=file: [file.append_logs([record]) for _ in range(10)]) for file in files
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(files[0].read_logs(0)) == [record] * 40
