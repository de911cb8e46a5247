"""What a service records of a run that is not its own: that it waits, starts, or has ended."""

import pytest

from ml_pipeline.runs.folder_claim import (
    FolderClaim,
    FolderInUse,
    check_not_written,
    record_end_for,
    record_queued,
    record_starting,
)
from ml_pipeline.runs.state import read_state
from ml_pipeline.runtime.process_identity import this_process
from tests.runs.folder_holder import CLAIM, python

ENDED = {"global_step": 64, "iterations": 2, "best_score": 1.5}


def test_a_queued_run_stays_queued_when_its_service_is_gone_and_is_taken_over_by_its_run(tmp_path):
    record = f"{CLAIM}from ml_pipeline.runs.folder_claim import record_queued; record_queued(Path(sys.argv[1]))"
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
