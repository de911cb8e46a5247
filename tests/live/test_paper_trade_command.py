"""The command line of paper trading: what it says about sessions that do not trade, and about its settings."""

import json

import pytest

from ml_pipeline.live.commands.paper_trade import main
from ml_pipeline.live.session_files import JOURNAL_FILE, STATUS_FILE
from ml_pipeline.live.sessions import find_session
from ml_pipeline.live.supervision.requests import Requests
from ml_pipeline.runs.folder_claim import FolderClaim


def stopped(claim):
    """A session that ends as one that was asked to stop."""
    claim.end("stopped", "Asked to stop.", global_step=0, iterations=0, best_score=None)
    claim.release()


@pytest.fixture
def root(tmp_path):
    """A folder of sessions with one that was stopped."""
    folder = tmp_path / "live" / "eurusd"
    folder.mkdir(parents=True)
    (folder / JOURNAL_FILE).touch()
    stopped(FolderClaim(folder))
    return folder.parent


def refusal(argv, capsys):
    """What the command says as it ends with code 2."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_session_that_has_ended_is_not_asked_to_stop_at_its_next_start(root, capsys):
    assert main(["stop", "eurusd", "--root", str(root)]) == 0
    assert "does not trade: it was stopped. There is nothing to stop." in capsys.readouterr().out
    assert Requests(root / "eurusd").poll() is None


def test_a_session_that_has_ended_closes_its_positions_at_its_next_start(root, capsys):
    assert main(["flatten", "eurusd", "--root", str(root)]) == 0
    assert "it was stopped. Its next start closes all positions and stops." in capsys.readouterr().out
    assert Requests(root / "eurusd").poll().what == "flatten"


def test_a_session_that_trades_is_asked_to_stop(root, capsys):
    claim = FolderClaim(root / "eurusd")
    try:
        assert main(["stop", "--root", str(root)]) == 0
        assert "The session eurusd stops and holds its positions" in capsys.readouterr().out
        assert Requests(root / "eurusd").poll().what == "stop"
    finally:
        stopped(claim)


def test_an_unknown_session_is_told_with_those_that_there_are(root, tmp_path, capsys):
    assert 'has no session "gold". Known names: eurusd.' in refusal(["status", "gold", "--root", str(root)], capsys)
    said = refusal(["status", "gold", "--root", str(tmp_path / "none")], capsys)
    assert 'has no session "gold". It has no session at all; name another folder with --root.' in said


def test_the_last_sentence_is_told_once_and_times_are_plain(root, capsys):
    status = {"bar": "2024-03-01T14:30:00", "last_sentence": "Asked to stop.", "broker": "simulated"}
    (find_session(root, None) / STATUS_FILE).write_text(json.dumps(status))
    assert main(["status", "--root", str(root)]) == 0
    told = capsys.readouterr().out
    assert told.count("Asked to stop.") == 1
    assert "2024-03-01 14:30:00 UTC" in told


def test_without_a_name_the_others_are_shown_in_one_line_each(root, capsys):
    other = root / "gold"
    other.mkdir()
    (other / JOURNAL_FILE).touch()
    claim = FolderClaim(other)
    try:
        assert main(["status", "--root", str(root)]) == 0
    finally:
        stopped(claim)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "gold: it is running"
    assert "eurusd: it was stopped" in told

    assert main(["status", "gold", "--root", str(root)]) == 0
    assert "eurusd" not in capsys.readouterr().out


def test_a_key_in_the_file_of_settings_is_refused_without_repeating_it(tmp_path, capsys):
    (tmp_path / "trade.yaml").write_text("model: m\nAPCA_API_SECRET_KEY: hidden\n")
    said = refusal(["--config", str(tmp_path / "trade.yaml")], capsys)
    assert "APCA_API_SECRET_KEY looks like a key" in said
    assert "hidden" not in said
