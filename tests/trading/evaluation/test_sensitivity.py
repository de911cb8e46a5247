import math

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.page import monthly_returns
from ml_pipeline.trading.evaluation.sensitivity import FEES_BPS, Sensitivity, analyze_sensitivity, delayed

DELAYS = {0: 0.0}


def test_the_break_even_fee_is_read_off_the_curve():
    assert Sensitivity({0.0: 0.3, 1.0: 0.2, 5.0: -0.2}, DELAYS).break_even_fee_bps == pytest.approx(3)
    assert Sensitivity({0.0: 0.3, 10.0: 0.2, 25.0: 0.05}, DELAYS).break_even_fee_bps == pytest.approx(30)
    assert (
        Sensitivity({0.0: 0.3, 10.0: 0.2, 25.0: 0.05}, DELAYS)
        .sentence()
        .startswith("The agent breaks even at a fee of")
    )
    for losing in ({0.0: -0.1, 1.0: -0.2}, {0.0: 0.0, 1.0: 0.0}):
        assert Sensitivity(losing, DELAYS).break_even_fee_bps is None
        assert "no fee at which" in Sensitivity(losing, DELAYS).sentence()
    idle = Sensitivity({0.0: 0.1, 1.0: 0.1}, DELAYS)
    assert idle.break_even_fee_bps is None
    assert "hardly trades" in idle.sentence()


def test_fees_cost_and_late_orders_miss(tiny_market):
    # Up in every second bar; the policy knows, and is long for just those.
    prices = 100 * np.cumprod(np.where(np.arange(60) % 2, 1.02, 1 / 1.02))
    env = StatefulTradingEnv(tiny_market(prices), TradingRules(fill_at="close", fee_bps=5))
    knowing = lambda observation: 2 if observation[0] % 2 == 0 else 1  # noqa: E731
    sensitivity = analyze_sensitivity(env, knowing)
    returns = list(sensitivity.by_fee.values())
    assert list(sensitivity.by_fee) == list(FEES_BPS)
    assert returns == sorted(returns, reverse=True)
    # 30 times in and 29 times out, 2 % each: at no fee 30 ln 1.02.
    assert returns[0] == pytest.approx(30 * math.log(1.02))
    assert sensitivity.by_delay[0] == sensitivity.by_fee[5.0] > 0 > sensitivity.by_delay[1]
    assert 50 < sensitivity.break_even_fee_bps < 150


def test_a_delayed_action_comes_later():
    late = delayed(lambda observation: observation * 10, 2, -1)
    assert [late(i) for i in range(5)] == [-1, -1, 0, 10, 20]


def test_monthly_returns_by_hand():
    days = np.array(["2023-12-30", "2023-12-31", "2024-01-15", "2024-01-31", "2024-03-01"], dtype="datetime64[ns]")
    ledger = {"time": days, "equity": np.array([100.0, 110.0, 50.0, 121.0, 60.5])}
    returns = monthly_returns(ledger)
    assert returns[2023] == pytest.approx({12: 0.1})
    assert returns[2024] == pytest.approx({1: 0.1, 3: -0.5})
