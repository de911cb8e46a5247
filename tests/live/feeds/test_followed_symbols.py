"""The symbols of a followed file: those of the training, or as many others, which the start prints as in a replay."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.connections import open_feed
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from tests.live.loop.sessions import deploy, write_prices


def followed(tmp_path, *, trained, written=None, name="prices.csv", **settings):
    """(symbols, notices) of a session that follows a file, or the sentence of the refusal."""
    path = tmp_path / name
    if written is not None:
        write_prices(path, written, n_bars=20)
    model = deploy(tmp_path / "model", trained)
    config = paper_trade_config({"model": model, "broker": "simulated", "follow": path, **settings})
    policy = load_deployed_policy(model, config.changes)
    feed = open_feed(config, policy)
    feed.close()
    return feed.symbols, policy.notices_on(feed.symbols)


def test_another_symbol_is_traded_in_place_of_the_trained_one_and_said_as_in_a_replay(tmp_path):
    symbols, notices = followed(tmp_path, trained=["A"], written=["EURUSD"])

    assert symbols == ("EURUSD",)
    assert notices == ("the policy was trained on A, and trades EURUSD here",)


def test_a_file_without_symbols_is_named_by_its_file(tmp_path):
    write_prices(tmp_path / "long.csv", ["A"], n_bars=20)
    rows = [line.split(",") for line in (tmp_path / "long.csv").read_text().splitlines()]
    (tmp_path / "gold.csv").write_text("".join(",".join([row[0], *row[2:]]) + "\n" for row in rows))

    symbols, _ = followed(tmp_path, trained=["A"], name="gold.csv")

    assert symbols == ("gold",)


@pytest.mark.parametrize("written", [["A", "B"], ["B", "A"], ["B", "C", "A"], ["A"]])
def test_trained_symbols_are_traded_if_they_are_there_or_still_to_come(tmp_path, written):
    symbols, notices = followed(tmp_path, trained=["A", "B"], written=written)

    assert symbols == ("A", "B")
    assert notices == ()


def test_another_number_of_symbols_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"trained on 1 symbol \(A\), but the data have 2 \(B, C\)"):
        followed(tmp_path, trained=["A"], written=["B", "C"])


def test_symbols_of_the_settings_are_taken_as_they_are(tmp_path):
    symbols, _ = followed(tmp_path, trained=["A"], written=["B", "C"], symbols=("C",))

    assert symbols == ("C",)


def test_a_file_without_rows_has_the_trained_symbols(tmp_path):
    (tmp_path / "prices.csv").write_text("time,symbol,open,high,low,close,volume\n")

    symbols, _ = followed(tmp_path, trained=["A"], timeframe="1m")

    assert symbols == ("A",)
