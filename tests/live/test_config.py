"""The command line of paper trading, and the file that it names."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.config import parse_paper_trade


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "trade.yaml"
    file.write_text("model: models/toy/current\nreplay: prices.csv\nspeed: 60\n")
    config = parse_paper_trade(["--config", str(file), "--speed", "90"], prog="paper-trade").config()
    assert (str(config.model), config.feed.speed, config.broker) == ("models/toy/current", 90.0, "simulated")


def test_a_key_in_the_file_is_refused_without_repeating_it(tmp_path):
    file = tmp_path / "trade.yaml"
    file.write_text("model: models/toy/current\napca_api_secret_key: hidden\n")
    with pytest.raises(UserError, match="apca_api_secret_key looks like a key") as refused:
        parse_paper_trade(["--config", str(file)], prog="paper-trade")
    assert "hidden" not in str(refused.value)


def test_an_action_that_there_is_not_is_told_with_the_nearest():
    with pytest.raises(UserError, match=r'A session has no action "stopp"\..*stop'):
        parse_paper_trade(["stopp"], prog="paper-trade")


@pytest.mark.parametrize("line", ["action: [stop, gold]", "config: other.yaml"])
def test_a_file_neither_ends_a_session_nor_names_another_file(tmp_path, line):
    file = tmp_path / "trade.yaml"
    file.write_text(f"model: models/toy/current\n{line}\n")
    with pytest.raises(UserError, match=f'unknown setting "{line.partition(":")[0]}"'):
        parse_paper_trade(["--config", str(file)], prog="paper-trade")
