"""state.json is plain JSON with the times and figures of a run, and anything else is refused."""

import json
import os
from datetime import UTC, datetime

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder_claim import FolderClaim, check_not_written
from ml_pipeline.runs.state import STATE_FILE, read_state
from ml_pipeline.runtime.process_identity import this_process

ENDED = {"global_step": 64, "iterations": 2, "best_score": 1.5}


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
        with pytest.raises(UserError, match="cannot be read: it is not a regular file"):
            read(tmp_path)


def test_times_are_iso_8601_in_utc(tmp_path):
    FolderClaim(tmp_path).end("finished", None, **ENDED)
    values = json.loads((tmp_path / STATE_FILE).read_text())
    assert {datetime.fromisoformat(values[name]).tzinfo for name in ("began", "ended")} == {UTC}
