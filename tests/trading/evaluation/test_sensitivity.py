import math
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import ActionRecorder, replayed_equity, run_policy
from ml_pipeline.trading.evaluation.sensitivity import (
    FEES_BPS,
    LARGEST_FEE_BPS,
    TOLERANCE_BPS,
    LateGain,
    analyze_sensitivity,
    first_crossing,
)

# Up by 2 % in every second bar.
ZIGZAG = 100 * np.cumprod(np.where(np.arange(60) % 2, 1.02, 1 / 1.02))


def _knowing(observation):
    """Long for just the bars of `ZIGZAG` that rise."""
    return 2 if observation[0] % 2 == 0 else 1


def _analyze(market, rules, act):
    env = StatefulTradingEnv(market, rules)
    recorder = ActionRecorder(act)
    agent = run_policy(env, recorder)
    return analyze_sensitivity(env, agent, recorder.actions)


def test_fees_cost_and_late_orders_miss(tiny_market):
    sensitivity = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close", fee_bps=5), _knowing)
    returns = list(sensitivity.by_fee.values())
    assert list(sensitivity.by_fee) == list(FEES_BPS)
    assert returns == sorted(returns, reverse=True)
    # 30 times in and 29 times out, 2 % each: at no fee 30 ln 1.02; one bar late 29 times that of the bars that fall.
    assert returns[0] == pytest.approx(30 * math.log(1.02))
    assert sensitivity.by_delay[0] == sensitivity.by_fee[5.0] > 0 > sensitivity.by_delay[1]
    assert sensitivity.break_even.without_costs == returns[0]


def test_the_break_even_fee_is_where_the_same_orders_earn_nothing(tiny_market):
    # Bought 30 times at 1 + f and sold 29 times at 1 - f: 30 ln 1.02 = 30 ln(1 + f) - 29 ln(1 - f).
    found = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close"), _knowing).break_even
    low, high = 0.0, 0.05
    for _ in range(60):
        f = (low + high) / 2
        low, high = (f, high) if 30 * math.log(1.02) > 30 * math.log1p(f) - 29 * math.log1p(-f) else (low, f)
    assert found.verdict == "found"
    assert found.fee_bps == pytest.approx(f * 1e4, abs=TOLERANCE_BPS)
    assert 95 < f * 1e4 < 105  # far beyond the fees of the figure
    assert found.sentence() == (
        f"The agent breaks even at a fee of {found.fee_bps:.1f} bps (its orders run again at other fees, to within "
        "0.05 bps; no other costs)."
    )


def test_slippage_and_spread_stay_on_and_are_named(tiny_market):
    # 10 bps of slippage and half a spread of 20 bps are paid on top of the fee: it breaks even 30 bps lower.
    rules = TradingRules(fill_at="close", slippage_bps=10, borrow_bps_per_year=300, fixed_fee=1e-9)
    market = tiny_market(ZIGZAG, half_spread=np.full(60, 0.002))
    free = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close"), _knowing).break_even
    found = _analyze(market, rules, _knowing).break_even
    assert found.fee_bps == pytest.approx(free.fee_bps - 30, abs=0.2)
    assert "slippage of 10 bps, the quoted spread, a fee of 1e-09 per order and borrowing at 300 bps a year" in (
        found.sentence()
    )


def test_a_loss_without_fees_is_not_a_loss_without_costs(tiny_market):
    taken = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close", slippage_bps=200), _knowing).break_even
    assert (taken.verdict, taken.fee_bps) == ("below zero without fees", None)
    assert (
        f"without costs its orders earn +{100 * (1.02**30 - 1):.1f} %, but slippage of 200 bps cost" in taken.sentence()
    )
    against = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close"), lambda seen: 3 - _knowing(seen)).break_even
    assert (against.verdict, against.fee_bps) == ("below zero without costs", None)
    free = f"{100 * (1.02**-29 - 1):+.1f} %"
    assert f"it loses even without any costs ({free})" in against.sentence()


def test_a_policy_that_never_trades_has_no_break_even_fee(tiny_market):
    idle = _analyze(tiny_market(ZIGZAG), TradingRules(), lambda _: 1).break_even
    assert (idle.verdict, idle.fee_bps) == ("no trades", None)
    assert idle.sentence() == "The agent never traded, so it has no break-even fee."


def test_what_earns_at_the_largest_fee_is_said_to(tiny_market):
    rich = _analyze(tiny_market(np.linspace(100, 300, 20)), TradingRules(), lambda _: 2).break_even
    assert (rich.verdict, rich.fee_bps) == ("above the largest fee", None)
    assert "gains at every fee up to 1,000 bps" in rich.sentence()


@pytest.mark.parametrize("seed", range(6))
def test_the_fee_found_lies_between_a_gain_and_a_loss(random_case, seed):
    """The property itself, by running the orders again just below and just above the fee."""
    market, rules, actions = random_case(seed, 1 + seed % 3, "target_weights", 0.05)
    rules = replace(rules, fixed_fee=0.0, borrow_bps_per_year=0.0, slippage_bps=0.0, lot_size=0.0, min_order=0.0)
    waiting = iter(actions)
    found = _analyze(market, rules, lambda _: next(waiting)).break_even
    at = {
        fee: replayed_equity(
            market, replace(rules, fee_bps=fee, sell_fee_bps=None), actions[: market.n_bars - 1], window=1
        )[-1]
        for fee in (0.0, LARGEST_FEE_BPS, *((found.fee_bps + d for d in (-0.05, 0.05)) if found.fee_bps else ()))
    }
    start = rules.initial_cash
    if found.verdict == "found":
        assert at[found.fee_bps - 0.05] > start >= at[found.fee_bps + 0.05]
    else:
        assert at[LARGEST_FEE_BPS] > start if found.verdict == "above the largest fee" else at[0.0] <= start


def test_the_first_crossing():
    assert first_crossing(lambda x: 1 - x, [0, 0.5, 4], 1e-3) == pytest.approx(1, abs=1e-3)
    assert first_crossing(lambda x: 1 + x, [0, 1, 2], 1e-3) is None
    assert first_crossing(lambda x: 0.5 if x < 3 else 0.0, [0, 3], 1e-3) == pytest.approx(3, abs=1e-3)


def test_a_gain_of_late_orders_is_explained_by_the_prices_after_them(tiny_market):
    """Buys before each fall of 2 % and sells before each rise: a bar later, each order fills better by ln 1.02."""
    gain = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close", fee_bps=0), lambda seen: 3 - _knowing(seen))
    found = gain.late_gain
    assert found.delay in {1, 3}
    assert (found.in_time, found.late) == (gain.by_delay[0], gain.by_delay[found.delay])
    assert found.late > 0 > found.in_time
    assert found.errors > 2
    assert "more than chance explains" in found.sentence()
    assert found.sentence() == gain.sentences()[1]
    assert f"instead of {100 * math.expm1(found.in_time):+.1f} %" in found.sentence()


def test_orders_that_lose_by_coming_late_need_no_explanation(tiny_market):
    sensitivity = _analyze(tiny_market(ZIGZAG), TradingRules(fill_at="close", fee_bps=0), _knowing)
    assert sensitivity.late_gain is None
    assert sensitivity.sentences() == [sensitivity.break_even.sentence()]


def test_a_gain_within_luck_is_called_luck():
    gain = LateGain(2, in_time=math.log(13.008), late=math.log(21.58), n_orders=104, errors=1.36)
    assert gain.sentence() == (  # ln(21.58 / 13.008) / 104 = 0.0049
        "Orders 2 bars late would have earned +2,058.0 % instead of +1,200.8 %: right after an order, prices moved "
        "against it by 0.49 % of the account (mean of 104 orders). This is 1.4 standard errors, within the range of "
        "chance."
    )
