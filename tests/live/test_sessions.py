"""Which sessions a folder holds, and which one is meant where none is named."""

import json
import os

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.session_files import HEARTBEAT_FILE, JOURNAL_FILE
from ml_pipeline.live.sessions import find_session, find_sessions, status_line, status_lines
from ml_pipeline.runs.folder_claim import FolderClaim


def begun(root, name, *, life_s):
    """A session that gave its last sign of life so many seconds after 1970."""
    folder = root / name
    folder.mkdir()
    (folder / JOURNAL_FILE).touch()
    (folder / HEARTBEAT_FILE).touch()
    os.utime(folder / HEARTBEAT_FILE, (life_s, life_s))
    return folder


@pytest.fixture
def claims():
    made = []
    yield lambda folder: made.append(FolderClaim(folder))
    for claim in made:
        claim.end("stopped", None, global_step=0, iterations=0, best_score=None)
        claim.release()


def test_the_last_to_give_a_sign_of_life_comes_first_whenever_its_journal_was_written(tmp_path):
    begun(tmp_path, "older", life_s=1)
    newer = begun(tmp_path, "newer", life_s=2)
    os.utime(newer / JOURNAL_FILE, (0, 0))

    assert [folder.name for folder in find_sessions(tmp_path, None)] == ["newer", "older"]
    assert find_session(tmp_path, None).name == "newer"


def test_the_one_that_runs_is_meant_however_long_it_was_silent(tmp_path, claims):
    claims(begun(tmp_path, "trades", life_s=1))
    os.utime(tmp_path / "trades" / "state.json", (1, 1))
    begun(tmp_path, "ended", life_s=2)

    assert find_session(tmp_path, None).name == "trades"
    assert [folder.name for folder in find_sessions(tmp_path, None)] == ["trades", "ended"]


def test_where_several_run_one_is_to_be_named(tmp_path, claims):
    for name in ("b", "a"):
        claims(begun(tmp_path, name, life_s=1))

    with pytest.raises(UserError, match="Several sessions run: a, b; name one of them"):
        find_session(tmp_path, None)
    assert find_session(tmp_path, "b").name == "b"


def test_a_broken_state_hides_no_session(tmp_path):
    (begun(tmp_path, "broken", life_s=1) / "state.json").write_text("{")

    assert find_session(tmp_path, None).name == "broken"


NO_STATUS = ["", "[]", "{", "[" * 100_000, '{"equity": "x"}', '{"positions": [1]}', '{"refusals": {"a": "b"}}']


@pytest.mark.parametrize("text", [*NO_STATUS, '{"bars": "x"}'])
def test_a_status_that_is_none_is_told_and_the_rest_is_shown(tmp_path, text):
    (tmp_path / "live.json").write_text(text)

    lines = status_lines(tmp_path)

    assert lines[0].endswith("it has not begun")
    assert "live.json is not the status of a session" in "\n".join(lines)


def test_a_session_in_one_line(tmp_path):
    status = {"bar": "2024-03-01T14:30:00", "equity": 10_210.0, "start_equity": 10_000.0}
    (tmp_path / "live.json").write_text(json.dumps(status))
    told = f"{tmp_path.name}: it has not begun, last bar 2024-03-01 14:30:00 UTC, equity 10,210.00 (+2.10 %)"

    assert status_line(tmp_path) == told


def test_a_session_without_a_bar_in_one_line(tmp_path):
    assert status_line(tmp_path) == f"{tmp_path.name}: it has not begun"


@pytest.mark.parametrize("text", [*NO_STATUS, '{"bar": "2024", "equity": "x"}'])
def test_a_broken_status_is_one_line(tmp_path, text):
    (tmp_path / "live.json").write_text(text)

    assert status_line(tmp_path).startswith(f"{tmp_path.name}: it has not begun")


def test_a_broken_state_is_one_line(tmp_path):
    (tmp_path / "state.json").write_text("{")

    assert status_line(tmp_path).startswith(f"{tmp_path.name}: ")
