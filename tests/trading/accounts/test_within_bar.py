"""Stop-loss and take-profit by hand, and what they leave in the ledger."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.ledger import LedgerRecorder
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import prepare_market
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import market_from_arrays

SHORT, FLAT, LONG = 0, 1, 2


def _run(market, rules, actions):
    env = StatefulTradingEnv(market, rules)
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    return env


def _bars(tiny_market, *bars, tradable=None):
    """A market of (open, high, low, close)."""
    open_, high, low, close = np.array(bars, dtype=float).T
    return tiny_market(close, open_, tradable, high=high, low=low)


QUIET = (100, 100, 100, 100)
STOP = TradingRules(fee_bps=0, stop_loss=0.1)
TARGET = TradingRules(fee_bps=0, take_profit=0.2)
BOTH = TradingRules(fee_bps=0, stop_loss=0.1, take_profit=0.2)


@pytest.mark.parametrize(
    ("rules", "side", "bar", "exit_price"),
    [
        (STOP, LONG, (98, 99, 91, 95), None),  # the low stays above 90
        (STOP, LONG, (98, 99, 90, 95), 90),  # reaching is enough
        (STOP, LONG, (98, 99, 60, 95), 90),
        (STOP, LONG, (85, 99, 80, 95), 85),  # opens below the stop
        (STOP, SHORT, (102, 111, 95, 99), 110),
        (STOP, SHORT, (115, 120, 95, 99), 115),
        (STOP, SHORT, (102, 109, 50, 99), None),
        (TARGET, LONG, (110, 119, 90, 95), None),
        (TARGET, LONG, (110, 120, 90, 95), 120),
        (TARGET, LONG, (125, 130, 90, 95), 125),  # opens above the target
        (TARGET, SHORT, (95, 130, 80, 95), 80),
        (TARGET, SHORT, (70, 130, 60, 95), 70),
        (BOTH, LONG, (100, 130, 80, 125), 90),  # both: the stop is assumed
        (BOTH, SHORT, (100, 130, 70, 75), 110),
        (BOTH, LONG, (125, 130, 80, 125), 90),
    ],
)
def test_where_a_position_is_closed_within_a_bar(tiny_market, rules, side, bar, exit_price):
    # All of 10,000 at 100 is a position of 100, opened in the second bar; the third decides.
    env = _run(_bars(tiny_market, QUIET, QUIET, bar), rules, [side, side])
    ledger, quantity = env.ledger(), 100 if side == LONG else -100
    np.testing.assert_array_equal(ledger["filled_A"], [0, quantity, 0])
    np.testing.assert_array_equal(ledger["exited_A"], [0, 0, 0 if exit_price is None else -quantity])
    np.testing.assert_allclose(ledger["exit_price_A"], [np.nan, np.nan, exit_price or np.nan])
    worth = exit_price or bar[3]
    assert ledger["equity"][-1] == pytest.approx(10_000 + quantity * (worth - 100))


def test_a_position_may_be_stopped_in_the_bar_in_which_it_is_opened(tiny_market):
    # 100 bought at 100 for 20 bps are 10,000 / 1.002 worth of it; sold at 90 for 20 bps.
    rules = replace(STOP, fee_bps=15, slippage_bps=5)
    ledger = _run(_bars(tiny_market, QUIET, (100, 101, 80, 99)), rules, [LONG]).ledger()
    quantity = 10_000 / 1.002 / 100
    assert ledger["filled_A"][1] == pytest.approx(quantity)
    assert ledger["exited_A"][1] == -ledger["filled_A"][1]
    assert ledger["position_A"][1] == 0
    assert ledger["cash"][1] == ledger["equity"][1] == pytest.approx(quantity * 90 * 0.998)
    assert ledger["costs_paid"][1] == pytest.approx(quantity * 190 * 0.002)


def test_a_position_filled_at_the_close_is_stopped_at_the_next_open(tiny_market):
    rules = replace(STOP, fill_at="close")
    ledger = _run(_bars(tiny_market, (100, 120, 80, 100), (85, 90, 80, 88)), rules, [LONG]).ledger()
    assert (ledger["fill_price_A"][1], ledger["exit_price_A"][1]) == (100, 85)


def test_stops_follow_the_average_entry_price(tiny_market):
    # Half of 10,000 at 100 buys 50; at 80 the account has 9,000, so 100 % are 112.5, of which 62.5 are bought.
    # (50 * 100 + 62.5 * 80) / 112.5 = 88.9: a stop of 25 % lies at 66.7, and not at 75 or 60. Selling moves nothing.
    rules = TradingRules("target_weights", fee_bps=0, stop_loss=0.25)
    flat_at_80 = (80, 80, 80, 80)
    bars = [QUIET, QUIET, (80, 80, 80, 80), (80, 80, 67, 80), flat_at_80, (80, 80, 66, 80)]
    weights = [[0.5], [1.0], [1.0], [0.5], [0.5]]
    ledger = _run(_bars(tiny_market, *bars), rules, np.array(weights)).ledger()
    np.testing.assert_allclose(ledger["exit_price_A"], [np.nan] * 5 + [10_000 / 112.5 * 0.75])


def test_nothing_is_closed_in_a_bar_that_an_asset_does_not_have(tiny_market):
    bars = [QUIET, QUIET, (50, 50, 50, 50), (95, 99, 95, 99)]
    ledger = _run(_bars(tiny_market, *bars, tradable=[True, True, False, True]), STOP, [LONG] * 3).ledger()
    assert not ledger["exited_A"].any()


@pytest.mark.parametrize("device", ["single", None, "cpu"])
@pytest.mark.parametrize(("mode", "again"), [("discrete", LONG), ("buy_hold_sell", 2)])
def test_after_a_stop_the_choice_is_flat_so_that_long_is_a_new_order(tiny_market, device, mode, again):
    bars = [QUIET, QUIET, (98, 99, 85, 95), (95, 99, 94, 95), (95, 99, 94, 95)]
    market, rules = _bars(tiny_market, *bars), replace(STOP, action_mode=mode)
    weights = []
    if device == "single":
        env = FastTradingEnv(market, rules)
        env.reset(seed=0)
        weights = [env.step(action)[0][-1] for action in (again, 1 if mode == "buy_hold_sell" else LONG, again)]
    else:
        env = BatchedTradingEnv(market, 1, rules, device=device)
        env.reset(seed=0)
        for action in (again, 1 if mode == "buy_hold_sell" else LONG, again):
            weights.append(float(env.step(_actions(action, device))[0][0, -1]))
    assert weights == [1, 0, 1]


def _actions(action, device):
    import torch

    return np.array([action]) if device is None else torch.tensor([action])


def test_an_exit_that_the_cash_does_not_cover_is_filled_in_part(tiny_market):
    # Short 50 of A and long 50 of B at 100. A opens at 250: 10,000 of cash buy back 40; the rest stays short.
    close = np.array([[100, 100], [100, 100], [250, 200]])
    market = tiny_market(close, high=close, low=close)
    ledger = _run(market, STOP, [np.array([0, 2])] * 2).ledger()
    assert ledger["exited_A"][-1] == pytest.approx(40)
    assert (ledger["position_A"][-1], ledger["cash"][-1]) == (pytest.approx(-10), 0)


def test_two_fills_of_a_bar_stand_in_one_trade_with_both_costs(tiny_market):
    rules = replace(STOP, fee_bps=10, fixed_fee=2, sell_fee_bps=30)
    ledger = _run(_bars(tiny_market, QUIET, (100, 101, 80, 99)), rules, [LONG]).ledger()
    costs = costs_of(ledger, rules, 252)
    quantity = ledger["filled_A"][1]
    assert costs["fixed_fee"][1, 0] == 4
    assert costs["fee"][1, 0] == pytest.approx(quantity * (100 * 0.001 + 90 * 0.003))
    (trade,) = trades_of(ledger, costs)
    assert (trade.open, trade.holding_bars) == (False, 0)
    assert (trade.entry_price, trade.exit_price) == pytest.approx((100, 90))
    assert trade.profit == pytest.approx(ledger["equity"][-1] - 10_000)


def test_a_ledger_with_exits_is_continued(tiny_market):
    ledger = _run(_bars(tiny_market, QUIET, (100, 101, 80, 99)), STOP, [LONG]).ledger()
    again = LedgerRecorder.from_ledger(ledger).ledger()
    assert list(again) == list(ledger)
    np.testing.assert_equal(again, ledger)


@pytest.mark.parametrize("setting", ["stop_loss", "take_profit"])
@pytest.mark.parametrize("missing", ["high", "low"])
def test_data_without_highs_or_lows_are_refused(setting, missing):
    close = np.linspace(10, 20, 40)[:, None] * [1, 2]
    given = {"open": close * 1.01, "high": close * 1.02, "low": close * 0.99}
    given[missing] = None if missing == "low" else np.where([True, False], given[missing], close)
    market = market_from_arrays(["A", "B"], np.arange(40).astype("datetime64[D]"), close, **given)
    features = compute_features(market, ("log_return_1",))
    scaler = FeatureScaler.fit(features.values)
    symbol = "A" if missing == "low" else "B"
    with pytest.raises(UserError, match=f"{setting} needs .* but every {missing} of {symbol} equals its close"):
        prepare_market(market, features, scaler, TradingRules(**{setting: 0.1}))
    prepared = prepare_market(market, features, scaler, TradingRules())
    with pytest.raises(UserError, match=f"{setting} needs the high and low of each bar"):
        FastTradingEnv(prepared, TradingRules(**{setting: 0.1}))


@pytest.mark.parametrize(("setting", "value"), [("stop_loss", 0), ("stop_loss", 1), ("take_profit", 11)])
def test_fractions_out_of_range_are_refused(setting, value):
    with pytest.raises(UserError, match=f"{setting} must be above 0"):
        TradingRules(**{setting: value})
