import math

import numpy as np
import pytest

from ml_pipeline.trading.evaluation import metrics

EQUITY = np.array([100.0, 110.0, 99.0, 118.8])  # returns +10 %, -10 %, +20 %
RETURNS = np.array([0.1, -0.1, 0.2])


def test_by_hand():
    np.testing.assert_allclose(metrics.returns_of(EQUITY), RETURNS, atol=1e-15)
    assert metrics.total_return(EQUITY) == pytest.approx(0.188)
    # 3 periods of 12 a year: growth to the power of 4.
    assert metrics.cagr(EQUITY, 12) == pytest.approx(1.188**4 - 1)
    # mean 1/15; squared deviations (1/30)^2 + (5/30)^2 + (4/30)^2 = 42/900; variance 42/1800 = 7/300.
    assert metrics.volatility(RETURNS, 12) == pytest.approx(math.sqrt(7 / 300 * 12))
    assert metrics.sharpe(RETURNS, 12) == pytest.approx((1 / 15) / math.sqrt(7 / 300) * math.sqrt(12))
    assert metrics.sharpe(RETURNS, 12, risk_free=1 / 15) == pytest.approx(0, abs=1e-12)
    # one loss of 0.1 among three periods: downside sqrt(0.01 / 3)
    assert metrics.sortino(RETURNS, 12) == pytest.approx((1 / 15) / math.sqrt(0.01 / 3) * math.sqrt(12))
    assert metrics.max_drawdown(EQUITY) == pytest.approx(-0.1)
    assert metrics.calmar(EQUITY, 12) == pytest.approx((1.188**4 - 1) / 0.1)
    assert metrics.win_rate([1.0, -2.0, 0.0, 3.0]) == 0.5


def test_the_start_counts_as_a_peak():
    assert metrics.max_drawdown(np.array([100.0, 80.0, 90.0])) == pytest.approx(-0.2)


def test_turnover_counts_both_sides():
    ledger = {
        "equity": np.array([100.0, 100.0, 200.0, 200.0]),
        "position_A": np.array([0.0, 10.0, 10.0, 0.0]),
        "filled_A": np.array([0.0, 10.0, 0.0, -10.0]),
        "fill_price_A": np.array([np.nan, 10.0, 20.0, 20.0]),
    }
    assert metrics.turnover(ledger) == pytest.approx(1 + 1)  # 100 of 100 in, 200 of 200 out


@pytest.mark.parametrize(
    "equity", [[100.0] * 5, [100.0], [100.0 * 1.01**i for i in range(5)]], ids=["flat", "start", "steady"]
)
def test_without_variation_there_is_no_sharpe(equity):
    returns = metrics.returns_of(np.array(equity))
    assert math.isnan(metrics.sharpe(returns, 252))
    assert math.isnan(metrics.sortino(returns, 252))
    assert math.isnan(metrics.calmar(np.array(equity), 252))


def test_too_short_for_figures():
    assert math.isnan(metrics.cagr(np.array([100.0]), 252))
    assert math.isnan(metrics.volatility(np.array([0.1]), 252))
    assert math.isnan(metrics.win_rate([]))
    assert metrics.max_drawdown(np.array([100.0])) == 0


def test_a_span_below_a_quarter_has_no_growth_a_year():
    week = np.append(np.linspace(1.0, 0.9, 4), 1.1)
    assert math.isnan(metrics.cagr(week, 252))
    assert math.isnan(metrics.calmar(week, 252))
    assert metrics.cagr(week, 16) == pytest.approx(1.1**4 - 1)  # 4 periods of 16 are a quarter
    assert math.isnan(metrics.cagr(week, 17))


def test_an_account_that_owes_money_has_lost_everything():
    ruined = np.array([100.0, 50.0, -20.0])
    assert metrics.total_return(ruined) == -1
    assert metrics.cagr(ruined, 4) == -1
    assert metrics.max_drawdown(ruined) == -1
    np.testing.assert_array_equal(metrics.returns_of(ruined), [-0.5, -1])
    assert metrics.calmar(ruined, 4) == -1
    np.testing.assert_array_equal(metrics.returns_of(np.array([100.0, 0.0, 0.0])), [-1, 0])


def test_figures_of_trades_by_hand():
    profits = [3.0, -1.0, 2.0, -1.5, 0.0]
    assert metrics.profit_factor(profits) == 2
    assert metrics.expectancy(profits) == 0.5
    assert math.isnan(metrics.profit_factor([1.0]))  # nothing was lost
    assert math.isnan(metrics.profit_factor([]))
    assert metrics.profit_factor([-1.0]) == 0
    assert math.isnan(metrics.expectancy([]))


LEDGER = {
    "equity": np.array([100.0, 100.0, 110.0, 104.0, 104.0]),
    "position_A": np.array([0.0, 5.0, 5.0, 0.0, 0.0]),
    "close_A": np.array([np.nan, 10.0, 11.0, 12.0, 12.0]),
    "position_B": np.array([0.0, -1.0, -1.0, -1.0, 0.0]),
    "close_B": np.array([20.0, 20.0, 22.0, 26.0, 26.0]),
}


def test_exposure_by_hand():
    gross, net = metrics.exposures(LEDGER)
    np.testing.assert_allclose(gross, [0, 0.7, 77 / 110, 26 / 104, 0])
    np.testing.assert_allclose(net, [0, 0.3, 33 / 110, -26 / 104, 0])
    assert metrics.time_in_market(LEDGER) == 3 / 4
    assert math.isnan(metrics.time_in_market({name: values[:1] for name, values in LEDGER.items()}))
    nothing_left = metrics.exposures({**LEDGER, "equity": np.zeros(5)})
    assert all(np.isnan(values).all() for values in nothing_left)


def test_the_hit_rate_of_bars_counts_those_that_moved_what_was_held():
    # Held into bar 2 (gain), 3 (loss) and 4 (no change, and not counted).
    assert metrics.bar_hit_rate(LEDGER) == (0.5, 2)
    rate, bars = metrics.bar_hit_rate({**LEDGER, "position_A": np.zeros(5), "position_B": np.zeros(5)})
    assert (math.isnan(rate), bars) == (True, 0)


def test_returns_are_time_weighted_around_money_that_moves():
    # 100 earns 10 % and gets 50: 160. That loses half, and 30 leave: 50. That earns 20 %: 60.
    equity, flows = np.array([100.0, 160.0, 50.0, 60.0]), np.array([0.0, 50.0, -30.0, 0.0])
    weighted = metrics.time_weighted(equity, flows)
    np.testing.assert_allclose(weighted, [100.0, 110.0, 55.0, 66.0])
    np.testing.assert_allclose(metrics.returns_of(weighted), [0.1, -0.5, 0.2])


def test_without_flows_equity_keeps_its_bits():
    equity = np.array([100.0, 1 / 3, 7.7])
    assert metrics.time_weighted(equity, np.array([1_000.0, 0.0, 0.0])) is equity  # money of the start is the start


def test_an_account_that_was_emptied_goes_on_when_money_comes():
    np.testing.assert_allclose(
        metrics.time_weighted(np.array([100.0, 0.0, 50.0, 60.0]), np.array([0.0, -100.0, 50.0, 0.0])),
        [100.0, 100.0, 100.0, 120.0],
    )


def test_exposure_and_turnover_are_fractions_of_the_money_in_the_account():
    money = {**LEDGER, "equity": LEDGER["equity"] * 0.5, "money": LEDGER["equity"]}
    assert metrics.turnover(money) == metrics.turnover(LEDGER)
    np.testing.assert_array_equal(metrics.exposures(money), metrics.exposures(LEDGER))
