import math
import re
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation import implausible_results
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.evaluation.implausible_results import (
    ImplausibleResult,
    Missed,
    Run,
    columns_by_feature,
    daily_sharpe,
    implausible_result,
    most_missed_feature,
)
from ml_pipeline.trading.evaluation.remarks import headlines
from ml_pipeline.trading.evaluation.summary import relative_profits
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask


def _run(returns, profits=(), held=None, *, minutes=1440, per_year=252.0):
    """A run whose equity has these returns, all in the market."""
    equity = 100 * np.cumprod(np.concatenate([[1.0], 1 + np.asarray(returns)]))
    n = len(equity)
    ledger = {
        "time": np.datetime64("2024-01-01", "ns") + np.arange(n) * np.timedelta64(minutes, "m"),
        "equity": equity,
        "position_A": np.ones(n),
    }
    return Run(ledger, list(profits), np.full(n, 100.0) if held is None else held, per_year)


def findings_of(run):
    """The phrases that luck does not explain."""
    result = implausible_result(run)
    return () if result is None else result.findings


def _normal(ratio, n, seed=0):
    """Daily returns with exactly this Sharpe ratio per year of 252."""
    noise = np.random.default_rng(seed).normal(0, 1, n)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    return 0.01 * (noise + ratio / math.sqrt(252))


def test_a_sharpe_ratio_above_four_is_implausible():
    (phrase,) = findings_of(_run(_normal(4.5, 500)))
    assert phrase.startswith("a Sharpe ratio of 4.5 ± ")
    assert phrase.endswith(" of daily returns (above 4)")
    assert findings_of(_run(_normal(3.5, 500))) == ()


def test_a_few_lucky_days_are_told_with_their_error():
    result = implausible_result(_run(_normal(4.5, 60)))  # the error is 2, so 4.5 is within three errors of nothing
    assert result.findings == ()
    (phrase,) = result.uncertain
    assert re.fullmatch(r"a Sharpe ratio of 4\.5 ± [12]\.\d of daily returns \(above 4\)", phrase)
    assert "; with so few observations it may be luck. Look for " in result.sentence()
    assert implausible_result(_run(_normal(3.5, 60))) is None


def test_days_that_are_too_few_for_a_ratio_are_judged_by_their_bars():
    """Five days of 390 minutes with a Sharpe ratio of 17: the error is about sqrt(252 / 5) = 7.1."""
    noise = np.random.default_rng(0).normal(0, 1, 5 * 390)
    returns = 0.001 * ((noise - noise.mean()) / noise.std(ddof=1) + 17 / math.sqrt(252 * 390))
    result = implausible_result(_run(returns, minutes=3, per_year=252 * 390))  # 390 of 3 minutes in a day
    assert result.findings == ()
    assert re.fullmatch(r"a Sharpe ratio of 17\.0 ± [678]\.\d of the bars' returns \(above 4\)", result.uncertain[0])


def test_nor_is_a_market_in_which_holding_does_as_well():
    rising = _run(_normal(4.5, 500))
    assert findings_of(rising._replace(held_equity=_run(_normal(3.0, 500)).ledger["equity"])) == ()
    assert findings_of(rising._replace(held_equity=_run(_normal(2.0, 500)).ledger["equity"])) != ()


def test_it_is_the_ratio_of_days_whatever_the_bars():
    """Ten bars of 144 minutes a day, whose returns alternate: by bars the ratio is small, by days it is large."""
    days = _normal(5.0, 300)
    bars = np.column_stack([days, *([np.full(300, 0.05), np.full(300, 1 / 1.05 - 1)] * 4), np.zeros(300)]).reshape(-1)
    run = _run(bars[1:], minutes=144, per_year=2520.0)
    ratio, error = daily_sharpe(run.ledger["time"], run.ledger["equity"], 2520.0)
    assert (ratio, error) == pytest.approx((5.0, 0.95), rel=0.1)
    assert len(findings_of(run)) == 1


@pytest.mark.parametrize(
    ("n_won", "n", "is_implausible"),
    [(70, 100, True), (64, 100, False), (24, 32, False), (30, 32, True), (20, 20, False)],
)
def test_a_share_of_winning_trades_above_two_thirds_is_implausible_if_it_is_not_luck(n_won, n, is_implausible):
    found = findings_of(_run(_normal(1.0, 500), [1.0] * n_won + [-1.0] * (n - n_won)))
    expected = {f"{n_won / n:.1%} of {n} trades won (above 65%)"} if is_implausible else set()
    assert {phrase for phrase in found if "trades won" in phrase} == expected


def test_a_share_of_winning_bars_and_a_profit_factor():
    returns = np.where(np.arange(200) % 10 < 7, 0.001, -0.002)
    assert findings_of(_run(returns)) == ("70.0% of 200 bars in the market gained (above 65%)",)
    assert findings_of(_run(returns[:90])) == ()
    trades = [11.0] * 20 + [-1.0] * 20
    assert findings_of(_run(_normal(1.0, 500), trades)) == ("a profit factor of 11.0 over 40 trades (above 10)",)
    assert findings_of(_run(_normal(1.0, 500), trades[10:30])) == ()


def test_bars_gain_where_prices_rise_steadily():
    """Holding gains in every bar as well, so that it is no skill of the agent."""
    rising = _run(np.full(200, 0.001) + 0.0001 * np.sin(np.arange(200)))
    assert any("bars in the market gained" in phrase for phrase in findings_of(rising))
    held = rising._replace(held_equity=rising.ledger["equity"])
    assert findings_of(held) == ()


def test_profits_are_judged_by_what_the_account_had(tiny_market):
    """In and out of a market that doubles and loses a third by turns: the last trades move a thousand times as much."""
    prices = 100 * np.cumprod(np.tile([1.0, 2.0, 1.0, 2 / 3], 20))
    ledger = run_policy(
        StatefulTradingEnv(tiny_market(prices), TradingRules(fee_bps=0, fill_at="close")),
        lambda seen: 2 if seen[0] % 2 == 0 else 1,
    )
    profits = relative_profits(ledger, 252, TradingRules(fee_bps=0))
    np.testing.assert_allclose(profits, [1.0, -1 / 3] * 20, rtol=1e-9)


def test_what_lost_money_is_believed():
    assert findings_of(_run(-_normal(4.5, 500), [1.0] * 90 + [-100.0] * 10)) == ()


def _two_features(tiny_market):
    """A market whose feature of A is noise and whose feature of B is the sign of A's next return; B stands still."""
    generator = np.random.default_rng(3)
    returns = generator.normal(0, 0.01, 120)
    close = np.column_stack([100 * np.exp(np.cumsum(returns)), np.full(120, 100.0)])
    features = np.column_stack([generator.normal(0, 1, 120), np.sign(np.append(returns[1:], 0.0))])
    return replace(tiny_market(close), features=features.astype(np.float32))


def test_the_feature_that_is_missed_most_is_named(tiny_market):
    env = StatefulTradingEnv(_two_features(tiny_market), TradingRules("target_weights", fee_bps=0, fill_at="close"))
    columns = {"noise": [0], "sign": [1]}
    missed = most_missed_feature(env, lambda seen: np.array([0.9 * seen[1] + 0.01 * seen[0], 0.0]), columns)
    assert (missed.feature, missed.n_bars) == ("sign", 120)
    assert missed.with_it > 1.0
    assert abs(missed.without_it) < 0.1
    bounded = most_missed_feature(env, lambda seen: np.array([seen[1], 0.0]), columns, most_bars=50)
    assert (bounded.feature, bounded.n_bars) == ("sign", 50)
    blind = most_missed_feature(env, lambda seen: np.array([0.5, 0.0]), columns)
    assert (blind.feature, blind.with_it) == (None, blind.without_it)


def test_the_columns_of_a_feature_are_those_of_every_asset():
    market = synthetic_market(n_bars=100, n_symbols=3)
    table = compute_features(market, ("log_return_1", "rsi_14", "time_of_day"))
    assert columns_by_feature(table, market.symbols) == {
        "log_return_1": [0, 2, 4],
        "rsi_14": [1, 3, 5],
        "time_of_day_sin": [6],
        "time_of_day_cos": [7],
    }


def test_its_sentence():
    missed = Missed("feature_leak", 27.2, 0.031, 375)
    causes = "a feature that uses later data, wrong prices, or training bars in the evaluation"
    assert ImplausibleResult(("a", "b"), missed=missed).sentence() == (
        f"Implausible: a, b. Look for {causes}: without feature_leak the policy earns +3.1% instead of +2,720.0% "
        "over 375 bars."
    )
    nothing = ImplausibleResult(("a",), missed=replace(missed, feature=None)).sentence()
    assert nothing.endswith("; over 375 bars, the policy earns as much without any single feature.")
    assert ImplausibleResult(("a",)).sentence() == f"Implausible: a. Look for {causes}."


def _leaking_task(n_bars=600):
    """A task whose second feature is the sign of the next return in half of the bars, and noise in the rest."""
    generator = np.random.default_rng(4)
    market = synthetic_market(n_bars=n_bars)
    after = np.sign(np.append(np.diff(np.log(market.close[:, 0])), 0.0))
    leak = np.where(generator.random(n_bars) < 0.8, after, generator.choice([-1.0, 1.0], n_bars))
    days = np.datetime64("2020-01-01", "ns") + np.arange(n_bars) * np.timedelta64(1, "D")
    leaking = market_from_arrays(
        ["A"], days, market.close[:, 0], open=market.close[:, 0], columns={"feature_leak": leak[:, None]}
    )
    config = TradingConfig(features=("log_return_1", "feature_leak"), fill_at="close", fee_bps=1)
    return TradingTask(config, market=leaking)


def test_a_leak_is_told_first_on_the_terminal_in_the_page_and_in_json(tmp_path):
    task = _leaking_task()
    figures = task.evaluate(lambda seen: 2 if seen[1] > 0 else 0, "all", tmp_path, page=True)
    line = figures["table"].splitlines()[2]
    assert line.startswith("Implausible: a Sharpe ratio of ")
    assert "bars in the market gained (above 65%)" in line
    assert "without feature_leak the policy earns" in line
    assert "Implausible" in (tmp_path / "report.html").read_text()
    assert '"feature": "feature_leak"' in (tmp_path / "evaluation.json").read_text()


def test_an_honest_policy_is_believed(evaluation_of, tiny_market):
    generator = np.random.default_rng(5)
    market = tiny_market(100 * np.exp(np.cumsum(generator.normal(0.0005, 0.01, 500))))
    evaluation = evaluation_of(market, lambda seen: 2 if seen[0] % 5 else 1)
    assert evaluation.implausible is None
    assert not any("Implausible" in sentence for sentence in headlines(evaluation))


def test_the_bounds_stand_in_one_place():
    assert (implausible_results.LARGEST_SHARPE, implausible_results.LARGEST_HIT_RATE) == (4.0, 0.65)
