"""What the command line says of keys and of real money."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.config import parse_paper_trade


def parse(*words):
    return parse_paper_trade([*words], prog="ml-pipeline paper-trade")


def test_a_key_in_the_file_of_settings_is_refused_without_repeating_it(tmp_path):
    file = tmp_path / "trade.yaml"
    file.write_text("model: models/x\nalpaca_secret_key: hush-hush\n")
    with pytest.raises(UserError, match="alpaca_secret_key looks like a key") as refused:
        parse("--config", str(file))
    assert "hush-hush" not in str(refused.value)


def test_real_money_is_allowed_by_a_line_in_a_file_and_by_no_flag(tmp_path):
    with pytest.raises(UserError, match="by a line in the settings file, not by a flag"):
        parse("--model", "x", "--live", "--real-money")
    file = tmp_path / "trade.yaml"
    file.write_text("model: models/x\nreal_money: true\n")
    config = parse("--config", str(file), "--live").config()
    assert (config.alpaca.live, config.alpaca.real_money) == (True, True)
