"""`paper-trade status`: a session in one line, and files that another hand has changed."""

import json

import pytest

from ml_pipeline.live.session_status import status_line, status_lines

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
