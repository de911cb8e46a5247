import importlib.util
import math
import warnings

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import ACTION_MODES, TradingRules
from ml_pipeline.trading.accounts.trades import costs_of
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.evaluation.report import as_json
from ml_pipeline.trading.evaluation.results import (
    alpha_beta,
    costs_by_kind,
    gains_by_asset,
    profit_by_asset,
    profit_curves,
)


def test_the_profits_of_assets_by_hand(tiny_market):
    # 1 % on 10,000 leaves 50 of A and 50 of B, at 100 each; A gains 5 each, and B loses 10 each.
    rules = TradingRules("discrete", fee_bps=100, fill_at="close", initial_cash=10_100)
    env = StatefulTradingEnv(tiny_market([[100.0, 100], [105, 90]]), rules)
    ledger = run_policy(env, lambda _: np.array([2, 2]))
    np.testing.assert_allclose(gains_by_asset(ledger), [[0, 0], [250, -500]], atol=1e-9)
    costs = costs_of(ledger, rules, 252)
    table = profit_by_asset(ledger, costs)
    assert table["A"] == pytest.approx(
        {"gain": 250, "fee": 50, "fixed_fee": 0, "slippage": 0, "spread": 0, "borrowing": 0, "other": 0, "profit": 200},
        abs=1e-9,
    )
    assert table["B"]["profit"] == pytest.approx(-550)
    np.testing.assert_allclose(profit_curves(ledger, costs), [[0, 0], [200, -550]], atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_profits_of_assets_add_up_to_the_change_of_equity_in_every_bar(random_case, seed):
    market, rules, actions = random_case(seed, 3, ACTION_MODES[seed % 4], 0.05)
    waiting = iter(actions)
    ledger = run_policy(StatefulTradingEnv(market, rules), lambda _: next(waiting))
    costs = costs_of(ledger, rules, market.periods_per_year)
    change = ledger["equity"] - ledger["equity"][0]
    np.testing.assert_allclose(profit_curves(ledger, costs).sum(axis=1), change, rtol=0, atol=1e-9 * rules.initial_cash)
    table = profit_by_asset(ledger, costs)
    assert sum(row["profit"] for row in table.values()) == pytest.approx(change[-1], abs=1e-9 * rules.initial_cash)
    assert sum(costs_by_kind(costs).values()) == pytest.approx(ledger["costs_paid"][-1])
    np.testing.assert_allclose([row["profit"] for row in table.values()], profit_curves(ledger, costs)[-1], atol=1e-7)


def _line(generator, n=2_000, *, phi=0.0):
    """Returns of alpha 0.0004 and beta 0.7 a bar, with autocorrelated residuals."""
    benchmark = generator.normal(0.0003, 0.012, n)
    noise = generator.normal(0, 0.005, n)
    for i in range(1, n):
        noise[i] += phi * noise[i - 1]
    return 0.0004 + 0.7 * benchmark + noise, benchmark


def test_alpha_and_beta_are_those_of_least_squares():
    returns, benchmark = _line(np.random.default_rng(0))
    slope, intercept = np.polyfit(benchmark, returns, 1)
    line = alpha_beta(returns, benchmark, 252)
    assert (line.beta, line.alpha) == pytest.approx((slope, intercept * 252))


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_their_errors_are_how_far_those_of_other_samples_lie_off(phi):
    generator = np.random.default_rng(1)
    lines = [alpha_beta(*_line(generator, 1_000, phi=phi), 252) for _ in range(300)]
    for figure in ("alpha", "beta"):
        spread = float(np.std([getattr(line, figure) for line in lines]))
        assert float(np.mean([getattr(line, f"{figure}_se") for line in lines])) == pytest.approx(spread, rel=0.15)


def test_without_a_market_that_moves_there_is_no_line():
    for returns, benchmark in ((np.ones(50), np.zeros(50)), (np.ones(5), np.arange(5.0))):
        assert all(math.isnan(value) for value in vars(alpha_beta(returns, benchmark, 252)).values())


@pytest.mark.skipif(importlib.util.find_spec("quantstats") is None, reason="quantstats is not installed")
@pytest.mark.filterwarnings("ignore")
def test_quantstats_says_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pandas as pd
        import quantstats.stats as peer

    days = pd.date_range("2020-01-01", periods=500)
    returns, benchmark = _line(np.random.default_rng(2), 500)
    greeks = peer.greeks(pd.Series(returns, days), pd.Series(benchmark, days), periods=252, prepare_returns=False)
    line = alpha_beta(returns, benchmark, 252)
    assert (line.alpha, line.beta) == pytest.approx((float(greeks["alpha"]), float(greeks["beta"])), rel=1e-9)


def test_they_are_written_and_told(evaluation_of, tiny_market):
    generator = np.random.default_rng(3)
    market = tiny_market(100 * np.exp(np.cumsum(generator.normal(0, 0.01, 200))))
    evaluation = evaluation_of(market, lambda seen: 2 if seen[0] % 2 else 1)
    written = as_json(evaluation)
    assert written["alpha_beta"]["beta"] == evaluation.against_holding.beta
    assert written["profit_by_asset"]["A"]["profit"] == pytest.approx(evaluation.agent["equity"][-1] - 10_000)
    assert sum(written["costs_by_kind"].values()) == pytest.approx(evaluation.agent["costs_paid"][-1])
