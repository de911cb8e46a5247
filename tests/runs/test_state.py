"""A run folder has one writer, says who it is and how the run ended, and is taken over from the dead alone."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs import state
from ml_pipeline.runs.state import (
    STATE_FILE,
    FolderClaim,
    FolderInUse,
    check_not_written,
    read_state,
    record_end_for,
    record_queued,
    record_starting,
)
from ml_pipeline.runtime import file_lock
from ml_pipeline.runtime.process_identity import this_process

ENDED = {"global_step": 64, "iterations": 2, "best_score": 1.5}
CLAIM = "from pathlib import Path; from ml_pipeline.runs.state import FolderClaim, FolderInUse; import sys, os\n"
HOLD = f"{CLAIM}FolderClaim(Path(sys.argv[1])); print('held', flush=True); input()"
RACE = f"""{CLAIM}
import time
from ml_pipeline.runs import state
look = state.check_not_written
state.check_not_written = lambda folder: (look(folder), time.sleep(0.02))  # between looking and claiming
print("ready", flush=True)
input()
won = []
for folder in sorted(Path(sys.argv[1]).iterdir()):
    try:
        FolderClaim(folder)
        won.append(folder.name)
    except FolderInUse:
        pass
print(*won, flush=True)
input()  # the winner lives on until all have tried
"""


def python(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path):
    """A process that is the writer of tmp_path / "run"."""
    with python(HOLD, tmp_path / "run") as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_run_is_running_until_its_end_is_recorded(tmp_path):
    claim = FolderClaim(tmp_path / "new" / "run")
    found = read_state(claim.folder)
    assert (found.status, found.reason, found.writer, found.ended) == ("running", None, this_process(), None)
    claim.end("stopped", "SIGTERM", **ENDED)
    found = read_state(claim.folder)
    assert (found.status, found.reason, found.global_step, found.best_score) == ("stopped", "SIGTERM", 64, 1.5)
    assert found.began < found.ended
    assert os.listdir(claim.folder) == [STATE_FILE]


def test_the_file_is_json_that_every_reader_takes(tmp_path):
    claim = FolderClaim(tmp_path)
    claim.end("finished", None, **{**ENDED, "best_score": float("-inf")})
    values = json.loads((tmp_path / STATE_FILE).read_text(), parse_constant=pytest.fail)
    assert values["best_score"] is None
    assert {"status", "reason", "host", "pid", "started", "began", "ended"} <= values.keys()


def test_a_folder_without_a_state_has_none(tmp_path):
    assert read_state(tmp_path) is None
    assert read_state(tmp_path / "missing") is None
    check_not_written(tmp_path / "missing")


def test_a_second_writer_is_refused_and_told_who_writes(holder, tmp_path):
    sentence = rf"{tmp_path / 'run'} is being written by process {holder.pid} on \S+, since \S+; wait for its end, stop"
    before = (tmp_path / "run" / STATE_FILE).read_bytes()
    for refused in (FolderClaim, check_not_written):
        with pytest.raises(FolderInUse, match=sentence) as told:
            refused(tmp_path / "run")
        assert "\n" not in str(told.value)
    assert (tmp_path / "run" / STATE_FILE).read_bytes() == before


def test_a_second_run_of_this_process_is_refused_as_well(tmp_path):
    first = FolderClaim(tmp_path)
    with pytest.raises(FolderInUse, match=f"is being written by process {os.getpid()} on "):
        FolderClaim(tmp_path)
    first.end("finished", None, **ENDED)
    FolderClaim(tmp_path)


def test_a_killed_run_reads_as_failed_and_its_folder_is_taken_over(holder, tmp_path):
    assert read_state(tmp_path / "run").status == "running"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    found = read_state(tmp_path / "run")
    assert found.status == "failed"
    assert found.reason.startswith(f"Its process {holder.pid} on ")
    assert "is gone" in found.reason
    FolderClaim(tmp_path / "run")
    assert read_state(tmp_path / "run").writer == this_process()


def _written_by(folder, **changes):
    """A folder that another process claimed: this one with some changes."""
    claim = FolderClaim(folder)
    path = claim.folder / STATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return claim


def test_a_pid_of_another_process_by_now_is_no_writer(tmp_path):
    boot = this_process().started.partition("/")[0]
    _written_by(tmp_path, started=f"{boot}/1")
    assert read_state(tmp_path).status == "failed"
    FolderClaim(tmp_path)


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"started": None}], ids=str)
def test_a_writer_that_cannot_be_asked_is_not_overruled(tmp_path, changes):
    _written_by(tmp_path, **changes)
    assert read_state(tmp_path).status == "running"
    remedy = f"as far as can be known from here; if that process is gone, delete {tmp_path / STATE_FILE} and try again"
    with pytest.raises(FolderInUse, match=remedy):
        FolderClaim(tmp_path)
    (tmp_path / STATE_FILE).unlink()
    FolderClaim(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "running"}', "null"])
def test_a_file_that_is_no_state_is_refused(tmp_path, text):
    (tmp_path / STATE_FILE).write_text(text)
    for read in (read_state, FolderClaim, check_not_written):
        with pytest.raises(UserError, match=r"state.json is not the state of a run; delete it if no process writes"):
            read(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        *({"pid": pid} for pid in ("abc", None, True, 0, -1, 10**30)),
        *({name: 5} for name in ("host", "started", "namespace", "began", "ended", "reason")),
        *({name: value} for name in ("global_step", "iterations") for value in ("x", [1], 1.5, True, -1, 10**400)),
        *({"best_score": value} for value in ("x", [1], True, 10**400)),
        *({"status": value} for value in ("dancing", ["running"], {})),
        *({"reason": {"a": 1}}, {"host": None}, {"began": None}),
    ],
    ids=lambda odd: f"{odd}"[:40],
)
@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_state_with_a_value_of_another_type_is_refused(tmp_path, status, odd):
    values = {"status": status, "began": "2026-01-02T03:04:05+00:00", **this_process()._asdict()}
    (tmp_path / STATE_FILE).write_text(json.dumps(values))
    assert read_state(tmp_path).status == status
    (tmp_path / STATE_FILE).write_text(json.dumps({**values, **odd}))
    for read in (read_state, check_not_written):
        with pytest.raises(UserError, match=r"state.json is not the state of a run; delete it if no process writes"):
            read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_state_that_is_a_pipe_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / STATE_FILE)
    for read in (read_state, FolderClaim, check_not_written):
        with pytest.raises(UserError, match="cannot be read: it is no regular file"):
            read(tmp_path)


def test_whoever_was_replaced_records_no_end(tmp_path):
    replaced = _written_by(tmp_path, host="elsewhere")
    before = (tmp_path / STATE_FILE).read_bytes()
    replaced.end("finished", None, **ENDED)
    replaced.abandon()
    assert (tmp_path / STATE_FILE).read_bytes() == before


def test_an_abandoned_claim_leaves_the_folder_as_it_was(tmp_path):
    FolderClaim(tmp_path / "new").abandon()
    assert list(tmp_path.iterdir()) == []
    FolderClaim(tmp_path).end("failed", "why", **ENDED)
    before = (tmp_path / STATE_FILE).read_bytes()
    FolderClaim(tmp_path).abandon()
    assert (tmp_path / STATE_FILE).read_bytes() == before
    assert os.listdir(tmp_path) == [STATE_FILE]


def _open_files():
    return os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else []


@pytest.mark.parametrize(
    ("module", "broken"),
    [
        *((file_lock, name) for name in ("_lock", "_is_still")),
        *((state, name) for name in ("check_not_written", "_text_of", "_write", "_as_json")),
    ],
)
def test_a_claim_that_breaks_off_leaves_no_folder_and_no_open_file(tmp_path, monkeypatch, module, broken):
    def break_off(*_):
        raise KeyboardInterrupt

    before = len(_open_files())
    with monkeypatch.context() as patched:
        patched.setattr(module, broken, break_off)
        with pytest.raises(KeyboardInterrupt):
            FolderClaim(tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []
    assert len(_open_files()) == before
    FolderClaim(tmp_path / "new" / "run")


def test_times_are_iso_8601_in_utc(tmp_path):
    FolderClaim(tmp_path).end("finished", None, **ENDED)
    values = json.loads((tmp_path / STATE_FILE).read_text())
    assert {datetime.fromisoformat(values[name]).tzinfo for name in ("began", "ended")} == {UTC}


@pytest.mark.parametrize("left", ["nothing", "a dead writer"])
def test_of_processes_that_start_at_once_one_wins_each_folder(tmp_path, left):
    names = [f"{n:02}" for n in range(10)]
    for name in names:
        (tmp_path / name).mkdir()
        if left == "a dead writer":
            boot = this_process().started.partition("/")[0]
            _written_by(tmp_path / name, started=f"{boot}/1")
    racers = [python(RACE, tmp_path) for _ in range(3)]
    try:
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            print(file=racer.stdin, flush=True)
        lines = [racer.stdout.readline() for racer in racers]
        assert all(lines)  # none broke down
        won = [line.split() for line in lines]
        assert sorted(name for names in won for name in names) == names
        assert all(os.listdir(tmp_path / name) == [STATE_FILE] for name in names)
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written: Permission denied"):
        FolderClaim(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"The folder \S+ cannot be made: Not a directory; choose another"):
        FolderClaim(Path(tmp_path / "file" / "run"))


def test_a_queued_run_stays_queued_when_its_service_is_gone_and_is_taken_over_by_its_run(tmp_path):
    record = f"{CLAIM}from ml_pipeline.runs.state import record_queued; record_queued(Path(sys.argv[1]))"
    with python(record, tmp_path / "run") as service:
        assert service.wait() == 0
    assert read_state(tmp_path / "run").status == "queued"
    check_not_written(tmp_path / "run")
    claim = FolderClaim(tmp_path / "run")
    assert (read_state(claim.folder).status, read_state(claim.folder).writer) == ("running", this_process())
    claim.end("finished", None, **ENDED)
    claim.release()


def test_a_run_queued_again_keeps_what_it_reached(tmp_path):
    claim = FolderClaim(tmp_path)
    with pytest.raises(FolderInUse, match="is being written by process"):
        record_queued(tmp_path)
    claim.end("stopped", "SIGTERM", **ENDED)
    claim.release()
    record_queued(tmp_path)
    found = read_state(tmp_path)
    assert (found.status, found.reason, found.ended, found.global_step, found.best_score) == (
        *("queued", None, None, 64),
        1.5,
    )


def test_a_run_that_starts_is_written_down_before_it_claims_its_folder(tmp_path):
    record_queued(tmp_path)
    record_starting(tmp_path)
    assert read_state(tmp_path).status == "running"
    claim = FolderClaim(tmp_path)  # of the same process: it is no second writer
    with pytest.raises(FolderInUse):
        record_starting(tmp_path)
    claim.abandon()
    assert record_end_for(tmp_path, "failed", "why")
    assert (read_state(tmp_path).status, read_state(tmp_path).reason) == ("failed", "why")


def test_an_end_is_recorded_for_others_only_where_they_cannot(holder, tmp_path):
    assert not record_end_for(tmp_path / "run", "failed", "why")  # its process goes on
    holder.kill()
    holder.wait()
    assert record_end_for(tmp_path / "run", "failed", "why")
    assert not record_end_for(tmp_path / "run", "stopped", "why not")  # it has an end
    assert (read_state(tmp_path / "run").status, read_state(tmp_path / "run").reason) == ("failed", "why")
    assert not record_end_for(tmp_path, "failed", "there is no run")
    record_queued(tmp_path / "waiting")
    assert record_end_for(tmp_path / "waiting", "stopped", None)
