"""Replayed over recorded bars, a session writes the ledger of `evaluate`, byte for byte."""

import csv
import json

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.record.session_log import EVENTS
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.trained.restore import load_run
from ml_pipeline.trading.market.files import load_market
from tests.live.loop.sessions import backtest, deploy, session, trade, write_prices

ONE, TEN = ["A"], [f"S{i}" for i in range(10)]
TIGHT = {"trade_limit_percent": 5.0, "lot_size": 1.0}


@pytest.mark.parametrize(
    ("symbols", "trained", "changes"),
    [
        (ONE, {}, {}),
        (TEN, {}, {}),
        (ONE, {"window": 1}, {"fee_bps": 1.5}),
        (ONE, {"ppo": {"memory": "gru"}}, {}),
        (ONE, {"action_mode": "buy_hold_sell", "allow_short": False}, {"fill_at": "close"}),
        (ONE, {"flat_at_close": True, "stop_loss": 0.01, "take_profit": 0.02}, {"max_gross": 3.0, "max_position": 3.0}),
        (TEN[:3], {"action_mode": "discrete", "limit_bps": 5.0}, {"lot_size": 1.0}),
        (TEN[:3], {"action_mode": "trade"}, {"financing_bps_per_year": 500.0, "max_gross": 2.0}),
        (TEN[:2], {"flat_at_close": True}, {"slippage_bps": 3.0, "fixed_fee": 0.1, "size_at": "decision"}),
        (TEN[:4], {"action_mode": "discrete", "flat_at_close": True}, {**TIGHT, "limit_bps": 1.0}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("quotes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_replay_writes_the_ledger_of_the_backtest(tmp_path, symbols, trained, changes, quotes):
    write_prices(tmp_path / "prices.csv", symbols, quotes=quotes)
    model = deploy(tmp_path / "model", symbols, **trained)

    result = trade(model, tmp_path / "live", tmp_path / "prices.csv", **changes)

    assert result.status == "finished", result.reason
    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv", **changes)
    assert (result.folder / "ledger.csv").read_bytes() == expected
    ledger = list(csv.DictReader(expected.decode().splitlines()))
    assert sum(bool(float(row[f"filled_{symbols[0]}"])) for row in ledger) >= 3, "hardly anything was traded"


def test_with_quotes_too(tmp_path):
    write_prices(tmp_path / "prices.csv", TEN[:2], quotes=True)
    model = deploy(tmp_path / "model", TEN[:2], action_mode="discrete")

    result = trade(model, tmp_path / "live", tmp_path / "prices.csv", slippage_bps=3.0)

    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv", slippage_bps=3.0)
    assert (result.folder / "ledger.csv").read_bytes() == expected
    write_prices(tmp_path / "mid.csv", TEN[:2])
    assert expected != backtest(model, tmp_path / "mid.csv", tmp_path / "other.csv", slippage_bps=3.0)


def test_what_lots_leave_at_a_close_is_no_choice_of_the_model(tmp_path):
    """Sold at the close, a position that is no whole number of lots leaves a rest; the model then holds nothing."""
    write_prices(tmp_path / "prices.csv", TEN, n_bars=100, missing=0.5)
    modes = {"action_mode": "buy_hold_sell", "flat_at_close": True, "trade_limit_percent": 5.0, "fixed_fee": 1.0}
    model = deploy(tmp_path / "model", TEN, seed=0, **modes)

    result = trade(model, tmp_path / "live", tmp_path / "prices.csv", lot_size=0.01)

    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv", lot_size=0.01)
    assert (result.folder / "ledger.csv").read_bytes() == expected


def test_bars_csv_is_the_market_that_was_traded(tmp_path):
    write_prices(tmp_path / "prices.csv", TEN[:3])
    model = deploy(tmp_path / "model", TEN[:3])

    folder = trade(model, tmp_path / "live", tmp_path / "prices.csv").folder

    traded, recorded = load_market(folder / "bars.csv"), load_market(tmp_path / "prices.csv")
    for name in ("times", "open", "high", "low", "close", "volume", "tradable"):
        np.testing.assert_array_equal(getattr(traded, name), getattr(recorded, name))


def test_a_session_tells_what_it_does_in_its_folder(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    model = deploy(tmp_path / "model", ONE)

    trading = session(model, tmp_path / "live", prices=tmp_path / "prices.csv")
    folder = trading.run().folder

    events = [json.loads(line) for line in (folder / "live.jsonl").read_text().splitlines()]
    assert {each["event"] for each in events} <= {*EVENTS}
    assert [events[0]["event"], events[-1]["event"]] == ["start", "stop"]
    decisions = [each for each in events if each["event"] == "decision"]
    rows = (folder / "ledger.csv").read_text().splitlines()[1:]
    assert len(decisions) == len(rows)
    assert {*decisions[0]["latency_ms"]} == {"feed", "books", "policy", "orders", "submit", "total"}
    status = json.loads((folder / "live.json").read_text())
    assert status["bars"] == 60
    assert status["fills"] == sum(each["event"] == "fill" for each in events)
    assert status["latency_ms"]["median"] > 0
    decision = json.loads((folder / "decision.json").read_text())
    assert [len(value) for value in decision["features"].values()] == [2] * 6
    assert (folder / "report.html").stat().st_size > 10_000
    assert json.loads((folder / "state.json").read_text())["status"] == "finished"


def test_a_replay_repeats_the_warnings_of_its_version_and_names_bars_that_were_trained_on(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    version = deploy(tmp_path / "models" / "eurusd" / "v1", ONE)
    warned = {"feature_warnings": ["X:feature_gap may hold later bars"], "despite": "it is known before the open"}
    (version / "promotion.json").write_text(json.dumps(warned))
    trained = ["2024-03-04T23:00", "2024-03-04T23:39", 60 * 10**9, ONE]
    _, saved = load_run(version / "best.pt")
    saved["task"]["trained_bars"] = trained
    save_checkpoint(version / "best.pt", saved)
    trading = session(version, tmp_path / "live", prices=tmp_path / "prices.csv")
    trading.run()
    told = "\n".join(trading.told)
    assert "A feature may use later data: X:feature_gap may hold later bars." in told
    assert "It was promoted despite this: it is known before the open." in told
    assert "10 of the 60 bars were used in training (from 2024-03-04T23:00 to 2024-03-04T23:39)" in told


def test_a_session_that_has_ended_stays_as_it_is(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    model = deploy(tmp_path / "model", ONE)
    folder = trade(model, tmp_path / "live", tmp_path / "prices.csv").folder
    before = {name: (folder / name).read_bytes() for name in ("ledger.csv", "bars.csv")}

    trade(model, tmp_path / "live", tmp_path / "prices.csv")

    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_session_goes_on_where_the_record_goes_on(tmp_path):
    write_prices(tmp_path / "prices.csv", TEN[:3], quotes=True)
    model = deploy(tmp_path / "model", TEN[:3], action_mode="discrete")
    lines = (tmp_path / "prices.csv").read_text().splitlines(keepends=True)
    times = [line[:19] for line in lines]
    ends = [n for n in range(1, len(lines)) if times[n] != times[n - 1]]
    for n in (ends[3], ends[5], ends[12], ends[13], ends[35], len(lines)):
        (tmp_path / "so_far.csv").write_text("".join(lines[:n]))
        folder = trade(model, tmp_path / "live", tmp_path / "so_far.csv").folder

    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv")
    assert (folder / "ledger.csv").read_bytes() == expected


def test_a_session_of_other_symbols_is_not_continued(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    trade(deploy(tmp_path / "model", ONE), tmp_path / "live", tmp_path / "prices.csv")
    write_prices(tmp_path / "others.csv", ["B"])

    with pytest.raises(UserError, match="choose another --name"):
        trade(deploy(tmp_path / "other", ["B"]), tmp_path / "live", tmp_path / "others.csv")


def test_bars_before_the_start_warm_features_up(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    model = deploy(tmp_path / "model", ONE)

    folder = trade(model, tmp_path / "live", tmp_path / "prices.csv", replay_from="2024-03-05T00:10").folder

    rows = (folder / "ledger.csv").read_text().splitlines()
    assert rows[1].startswith("2024-03-05 00:10:00,10000.0,10000.0,0.0,")
    assert len((folder / "bars.csv").read_text().splitlines()) == 61


def test_bars_that_the_rules_cannot_trade_on_are_refused_as_in_a_backtest(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    lines = [line.split(",") for line in (tmp_path / "prices.csv").read_text().splitlines()]
    (tmp_path / "closes.csv").write_text("".join(f"{line[0]},{line[1]},{line[5]}\n" for line in lines))
    days = [f"2024-{1 + i // 28:02}-{1 + i % 28:02}" for i in range(len(lines) - 1)]
    rows = [",".join([day, *line[1:]]) for day, line in zip(days, lines[1:], strict=True)]
    (tmp_path / "days.csv").write_text("\n".join([",".join(lines[0]), *rows]) + "\n")
    model = deploy(tmp_path / "model", ONE, features=("log_return_1",))

    for prices, changes in (("days.csv", {"flat_at_close": True}), ("closes.csv", {"stop_loss": 0.01})):
        with pytest.raises(UserError) as refused:
            backtest(model, tmp_path / prices, tmp_path / "expected.csv", **changes)
        with pytest.raises(UserError) as error:
            trade(model, tmp_path / "live", tmp_path / prices, **changes)
        assert str(error.value) == str(refused.value)
