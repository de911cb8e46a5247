import numpy as np

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import equity_path, run_policy

RULES = TradingRules(initial_cash=1000.0, fee_bps=20.0)


class Turning:
    """Long and short in turn; counts the episodes that it began."""

    def __init__(self):
        self.episodes, self.step = 0, 0

    def begin_episode(self):
        self.episodes += 1
        self.step = 0

    def __call__(self, observation):
        self.step += 1
        return 2 if self.step // 3 % 2 == 0 else 0


def test_the_path_is_the_equity_of_the_ledger(tiny_market):
    market = tiny_market(100 * np.exp(np.cumsum(0.02 * np.random.default_rng(0).standard_normal(40))))
    act = Turning()
    path = equity_path(FastTradingEnv(market, RULES, window=3), act)
    ledger = run_policy(StatefulTradingEnv(market, RULES, window=3), Turning())
    assert act.episodes == 1
    np.testing.assert_array_equal(path.equity, ledger["equity"])
    np.testing.assert_array_equal(path.times, ledger["time"])
    assert path.periods_per_year == 252


def test_a_ruined_account_keeps_what_it_has_to_the_end(tiny_market):
    market = tiny_market([100.0, 100.0, 300.0, 300.0, 500.0, 500.0])
    path = equity_path(FastTradingEnv(market, RULES, window=1), lambda observation: 0)  # short as prices triple
    assert len(path.times) == len(path.equity) == 6
    assert len({*path.equity[2:]}) == 1
    assert path.equity[-1] <= 0
