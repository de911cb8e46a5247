"""Limit orders by hand: what fills them, at which price, and what comes first in a bar."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

SHORT, FLAT, LONG = 0, 1, 2
QUIET = (100, 100, 100, 100)
LIMIT = TradingRules(fee_bps=0, limit_bps=100)  # 99 for a buy, 101 for a sale, decided at 100


def _bars(tiny_market, *bars):
    """A market of (open, high, low, close)."""
    open_, high, low, close = np.array(bars, dtype=float).T
    return tiny_market(close, open_, high=high, low=low)


def _ledger(tiny_market, rules, bars, actions):
    env = StatefulTradingEnv(_bars(tiny_market, *bars), rules)
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    return env.ledger()


@pytest.mark.parametrize(
    ("side", "bar", "price"),
    [
        (LONG, (100, 105, 98.9, 102), 99),
        (LONG, (100, 105, 99, 102), None),  # touched, and not traded through
        (LONG, (98, 105, 97, 102), 98),  # the open is better
        (SHORT, (100, 101.1, 95, 96), 101),
        (SHORT, (100, 101, 95, 96), None),
        (SHORT, (103, 104, 95, 96), 103),
    ],
)
def test_an_order_is_filled_where_the_bar_trades_through_its_limit(tiny_market, side, bar, price):
    # The order is worth all of 10,000 at the close of 100 that it was decided on.
    ledger = _ledger(tiny_market, LIMIT, [QUIET, bar], [side])
    quantity = 0 if price is None else 100 if side == LONG else -100
    assert ledger["filled_A"][1] == quantity
    assert ledger["equity"][1] == pytest.approx(10_000 + quantity * (bar[3] - (price or 0)))
    if price is not None:
        assert ledger["fill_price_A"][1] == price


@pytest.mark.parametrize("device", ["single", None, "cpu"])
def test_an_order_that_lapsed_is_ordered_again_by_the_same_choice(tiny_market, device):
    market = _bars(tiny_market, QUIET, QUIET, QUIET, (100, 101, 98, 100))
    weights = []
    if device == "single":
        env = FastTradingEnv(market, LIMIT)
        env.reset(seed=0)
        weights = [env.step(LONG)[0][-1] for _ in range(3)]
    else:
        import torch

        env = BatchedTradingEnv(market, 1, LIMIT, device=device)
        env.reset(seed=0)
        for _ in range(3):
            action = np.array([LONG]) if device is None else torch.tensor([LONG])
            obs, *_, infos = env.step(action)
            weights.append(float(infos.get("final_obs", obs)[0, -1]))
    assert weights == [0, 0, pytest.approx(100 * 100 / (10_000 + 100))]


def test_the_proceeds_of_a_limit_sale_buy_nothing_in_its_bar(tiny_market):
    # A is sold at 101 and B would be bought at 99 in the same bar: the order is unknown.
    close = np.full((3, 2), 100.0)
    up, down = np.array([[0, 0], [0, 0], [2, 0]]), np.array([[0, 0], [2, 0], [0, 2]])
    market = tiny_market(close, high=close + up, low=close - down)
    env = StatefulTradingEnv(market, replace(LIMIT, action_mode="target_weights"))
    env.reset(seed=0)
    env.step(np.array([1.0, 0.0]))
    env.step(np.array([0.0, 1.0]))
    ledger = env.ledger()
    assert ledger["filled_A"].tolist() == [0, 100, -100]
    assert ledger["filled_B"].tolist() == [0, 0, pytest.approx(100 / 99)]  # of the 100 that A's limit had saved


@pytest.mark.parametrize(
    ("low", "filled", "exited"),
    [
        (89.2, -100, 0),
        (89, 0, -100),  # the stop at 89.1 comes before the sale at 101, which lapses
    ],
)
def test_a_stop_comes_before_the_limit_order_of_its_bar(tiny_market, low, filled, exited):
    bars = [QUIET, (99, 100, 98, 100), (100, 102, low, 101)]  # bought at 99
    rules = replace(LIMIT, stop_loss=0.1)
    ledger = _ledger(tiny_market, rules, bars, [LONG, FLAT])
    assert ledger["position_A"][1] == 100
    assert (ledger["filled_A"][2], ledger["exited_A"][2]) == (filled, exited)


@pytest.mark.parametrize(("close", "exit_price"), [(103, None), (105, 103.95)])
def test_after_a_fill_within_the_bar_only_the_close_proves_that_a_target_was_reached(tiny_market, close, exit_price):
    # Bought at 99 within the bar; the high of 110 may have come before. The target is 99 * 1.05.
    rules = replace(LIMIT, take_profit=0.05)
    ledger = _ledger(tiny_market, rules, [QUIET, (100, 110, 98, close)], [LONG])
    assert ledger["filled_A"][1] == 100
    np.testing.assert_allclose(ledger["exit_price_A"][1], exit_price or np.nan)


def test_a_position_is_stopped_in_the_bar_of_its_limit_order(tiny_market):
    rules = replace(LIMIT, stop_loss=0.1)
    ledger = _ledger(tiny_market, rules, [QUIET, (100, 110, 80, 105)], [LONG])
    assert (ledger["fill_price_A"][1], ledger["exit_price_A"][1]) == (99, pytest.approx(89.1))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"limit_bps": -1}, "limit_bps must be from 0 to below 10000"),
        ({"limit_bps": 5, "fill_at": "close"}, "limit_bps fills orders within the next bar"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, says):
    with pytest.raises(UserError, match=says):
        TradingRules(**settings)
