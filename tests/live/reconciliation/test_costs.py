from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.costs import RealizedCosts, filled_orders, realized_costs, write_realized_costs
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.runs.train_command_line import parse_train_start
from tests.live.reconciliation.sessions import RULES, Fault, model_of, small_market, trade

MARKET = small_market(n_bars=140)
MODEL = model_of(MARKET, RULES)
N_BARS = 127  # of decisions that are filled


def met(record: RecordedSession) -> RealizedCosts:
    return realized_costs(record, filled_orders(record, SessionBacktest(record)))


def everywhere(kind: str, value: float) -> list[Fault]:
    return [Fault(kind, k, asset, value) for k in range(N_BARS) for asset in (0, 1)]


def without_spread(record: RecordedSession) -> RecordedSession:
    """The record of a broker that puts slippage into prices, and charges a fee alone."""
    fee = (RULES.fee_bps) / 10_000
    fills = [fill._replace(costs=abs(fill.quantity) * fill.price * fee) for fill in record.fills]
    return replace(record, fills=fills, slippage_in_costs=False)


def test_costs_as_assumed_give_the_settings_of_the_session() -> None:
    costs = met(trade(MARKET, MODEL))
    assert costs.settings == pytest.approx({"fee_bps": 5.0, "sell_fee_bps": 5.0, "slippage_bps": 2.0})
    assert not costs.sentences
    for side in costs.sides:
        assert side.slippage == 0.0
        assert side.realized == pytest.approx(side.assumed)


def test_a_fee_that_is_higher_becomes_the_fee_of_the_next_training() -> None:
    costs = met(trade(MARKET, MODEL, everywhere("costs", 3.0)))
    assert costs.settings == pytest.approx({"fee_bps": 8.0, "sell_fee_bps": 8.0, "slippage_bps": 2.0})


def test_slippage_is_what_prices_were_worse_and_knows_its_interval() -> None:
    generator = np.random.default_rng(0)
    record = trade(MARKET, MODEL)
    worse = [
        fill._replace(price=fill.price * (1 + np.sign(fill.quantity) * generator.normal(6, 2) / 1e4))
        for fill in record.fills
    ]
    costs = met(without_spread(replace(record, fills=worse)))
    assert costs.settings["slippage_bps"] == pytest.approx(6.0, abs=0.5)
    assert costs.settings["fee_bps"] == pytest.approx(5.0, abs=0.02)
    for side in costs.sides:
        low, high = side.slippage_interval
        assert low < side.slippage < high
        assert 4 < low < high < 8


def test_a_gain_by_prices_is_written_as_no_slippage_and_said() -> None:
    record = trade(MARKET, MODEL)
    better = [fill._replace(price=fill.price * (1 - np.sign(fill.quantity) * 3e-4)) for fill in record.fills]
    costs = met(without_spread(replace(record, fills=better)))
    assert costs.settings["slippage_bps"] == 0.0
    assert any("a gain" in sentence for sentence in costs.sentences)


def test_too_few_fills_change_no_setting_and_say_so() -> None:
    market = small_market(n_bars=30)
    record = trade(market, model_of(market, RULES), [Fault("costs", k, 0, 50.0) for k in range(10)])
    costs = met(record)
    assert costs.settings == {"fee_bps": 5.0, "sell_fee_bps": 5.0, "slippage_bps": 2.0}
    assert [sentence.split()[0] for sentence in costs.sentences] == ["fee_bps", "sell_fee_bps"]
    assert "at least 30 needed" in costs.sentences[0]


def test_nothing_filled_says_so_and_knows_no_delay() -> None:
    market = small_market(n_bars=30)
    record = trade(market, model_of(market, RULES), [Fault("refused", k, None) for k in range(17)])
    costs = met(record)
    assert costs.n_fills == 0
    assert np.isnan(costs.delay_s[0])
    assert not costs.sides
    assert len(costs.sentences) == 3


def test_implementation_shortfall_is_what_a_free_fill_at_the_decisions_close_would_have_saved() -> None:
    record = trade(MARKET, MODEL)
    ledger, expected = record.ledger, 0.0
    for symbol in MARKET.symbols:
        filled, price = ledger[f"filled_{symbol}"][1:], ledger[f"fill_price_{symbol}"][1:]
        expected += float(np.sum(filled * (price - ledger[f"close_{symbol}"][:-1])))
    expected += sum(fill.costs for fill in record.fills)
    assert met(record).shortfall == pytest.approx(expected)


def test_delay_counts_from_the_close_of_the_decision() -> None:
    day = 86_400.0
    record = trade(MARKET, MODEL)
    later = [fill._replace(time=fill.time + np.timedelta64(90, "s")) for fill in record.fills]
    on_time, late = met(record), met(replace(record, fills=later))
    assert late.delay_s[0] == on_time.delay_s[0] + 90
    assert on_time.delay_s[0] == 0.0  # a day's bar closes when the next one opens
    assert on_time.delay_s[1] == 2 * day  # or at the weekend


def test_the_file_is_read_by_train(tmp_path: Path) -> None:
    record = trade(MARKET, MODEL, everywhere("costs", 3.0))
    path = tmp_path / "costs-met.yaml"
    write_realized_costs(path, record, met(record))
    assert yaml.safe_load(path.read_text()).keys() == {"fee_bps", "sell_fee_bps", "slippage_bps"}
    config = parse_train_start(["--config", str(path), "--total-timesteps", "64"]).config
    assert config.trading.fee_bps == pytest.approx(8.0)
    assert config.trading.slippage_bps == pytest.approx(2.0)
