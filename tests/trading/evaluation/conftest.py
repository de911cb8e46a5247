"""Evaluations of simple policies in small markets."""

from collections.abc import Callable
from typing import Any

import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.comparison import MarketPart, compare_with_baselines
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.timeframes import Calendar

CALENDAR = Calendar("weekdays", 252.0, "daily bars, not on weekends: 252 a year")


@pytest.fixture(scope="session")
def evaluation_of() -> Callable[..., Evaluation]:
    """The evaluation of a policy, or of one action at every bar, with two random policies."""

    def evaluate(market: PreparedMarket, action: Any = 1, **rules: Any) -> Evaluation:
        act = action if callable(action) else lambda _: action
        env = StatefulTradingEnv(market, TradingRules(**rules))
        return compare_with_baselines(env, act, MarketPart("test", CALENDAR), n_policies=2).evaluation

    return evaluate
