"""A run folder has one writer, says who it is and how the run ended, and is taken over from the dead alone."""

import json
import os
import signal
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs import folder_claim, state
from ml_pipeline.runs.folder_claim import FolderClaim, FolderInUse, check_not_written
from ml_pipeline.runs.state import STATE_FILE, read_state
from ml_pipeline.runtime import files
from ml_pipeline.runtime.process_identity import this_process
from tests.runs.folder_holder import CLAIM, python

ENDED = {"global_step": 64, "iterations": 2, "best_score": 1.5}
RACE = f"""{CLAIM}
import time
from ml_pipeline.runs import folder_claim
look = folder_claim.check_not_written
folder_claim.check_not_written = lambda folder: (look(folder), time.sleep(0.02))  # between looking and claiming
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


def test_a_run_is_running_until_its_end_is_recorded(tmp_path):
    claim = FolderClaim(tmp_path / "new" / "run")
    found = read_state(claim.folder)
    assert (found.status, found.reason, found.writer, found.ended) == ("running", None, this_process(), None)
    claim.end("stopped", "SIGTERM", **ENDED)
    found = read_state(claim.folder)
    assert (found.status, found.reason, found.global_step, found.best_score) == ("stopped", "SIGTERM", 64, 1.5)
    assert found.began < found.ended
    assert os.listdir(claim.folder) == [STATE_FILE]


def test_a_second_writer_is_refused_and_told_who_writes(holder, tmp_path):
    sentence = (
        rf"{tmp_path / 'run'} is being written by process {holder.pid} on \S+, since \S+; wait until it ends, stop"
    )
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
    os.utime(tmp_path / "run" / STATE_FILE, (0, 1_700_000_000))  # 2023-11-14 22:13:20 UTC
    (tmp_path / "run" / "metrics.jsonl").touch()
    os.utime(tmp_path / "run" / "metrics.jsonl", (0, 1_700_000_060))
    found = read_state(tmp_path / "run")
    assert found.status == "failed"
    assert found.reason.startswith(f"The process {holder.pid} on ")
    assert "ended without a message (last sign of life at 2023-11-14 22:14:20 UTC)" in found.reason
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
    remedy = f"as far as this machine can tell; if that process is gone, delete {tmp_path / STATE_FILE} and try again"
    with pytest.raises(FolderInUse, match=remedy):
        FolderClaim(tmp_path)
    (tmp_path / STATE_FILE).unlink()
    FolderClaim(tmp_path)


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
        *((files, name) for name in ("_lock", "_is_still")),
        *((folder_claim, name) for name in ("check_not_written", "state_text", "write_state")),
        *((state, name) for name in ("state_text", "write_state_text", "_as_json")),
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
    with pytest.raises(UserError, match=r"The folder \S+ cannot be created: Not a directory; choose another"):
        FolderClaim(Path(tmp_path / "file" / "run"))
