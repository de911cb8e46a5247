import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import buy_and_hold, equal_weight, random_policies, run_policy
from ml_pipeline.trading.evaluation.metrics import turnover


@pytest.fixture(scope="module")
def brief_evaluations():
    """Here they are whole."""


def test_buy_and_hold_of_one_asset_by_hand(tiny_market):
    # 1 % costs on what is bought: 10,100 buy 100 at the open of 100, worth 15,000 at the last close.
    market = tiny_market(close=[90, 110, 150], open=[90, 100, 120])
    ledger = buy_and_hold(StatefulTradingEnv(market, TradingRules(fee_bps=100, initial_cash=10_100)))
    np.testing.assert_allclose(ledger["equity"], [10_100, 11_000, 15_000])
    np.testing.assert_allclose(ledger["filled_A"], [0, 100, 0])


@pytest.mark.parametrize("mode", ["discrete", "target_weights"])
@pytest.mark.parametrize("allow_short", [True, False])
def test_buy_and_hold_shares_equally_among_what_is_listed(tiny_market, mode, allow_short):
    # A doubles, B stands still, C is listed later: half each of A and B, never traded again.
    market = tiny_market(
        close=[[1, 4, 0], [1, 4, 0], [2, 4, 7], [2, 4, 7]], tradable=[[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    )
    rules = TradingRules(mode, allow_short=allow_short, fee_bps=0, initial_cash=100)
    ledger = buy_and_hold(StatefulTradingEnv(market, rules))
    np.testing.assert_allclose(ledger["equity"], [100, 100, 150, 150])
    assert "close_C" not in ledger


@pytest.mark.parametrize("baseline", [buy_and_hold, equal_weight])
@pytest.mark.parametrize(
    "limit",
    [
        {"trade_limit_percent": 10},
        {"action_threshold": 0.9},
        {"max_position": 0.2, "max_gross": 0.3, "on_limit": "refuse"},
        {"min_cash": 0.5},
    ],
)
def test_the_limits_of_the_agent_do_not_keep_from_holding_in_full(tiny_market, baseline, limit):
    # 1 % costs on what is bought: 101 buy 50 of each at 1; A doubles: 50 * 2 + 50 * 1 at the last close.
    market = tiny_market(close=[[1, 1], [2, 1]], open=[[1, 1], [1, 1]])
    ledger = baseline(StatefulTradingEnv(market, TradingRules(fee_bps=100, initial_cash=101, **limit)))
    np.testing.assert_allclose(ledger["equity"], [101, 150])


def test_random_policies_are_seeded_and_differ(tiny_market):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, 60).cumsum())
    env = StatefulTradingEnv(tiny_market(prices))
    first, again = (random_policies(env, seed=5, n_policies=3) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["equity"], other["equity"])
    assert len({ledger["equity"][-1] for ledger in first}) == 3


def test_run_policy_hands_each_observation_to_the_policy(tiny_market):
    seen = []

    def act(observation):
        seen.append(observation.tolist())
        return 1

    ledger = run_policy(StatefulTradingEnv(tiny_market(close=[1, 2, 3])), act)
    assert seen == [[0, 0], [1, 0]]
    assert len(ledger["time"]) == 3


def test_equal_weight_is_brought_back_at_every_bar(tiny_market):
    # Half each at bar 0; A doubles: 100 and 50, brought back to 75 each; then B doubles.
    market = tiny_market(close=[[1, 1], [2, 1], [2, 2]], open=[[1, 1], [1, 1], [2, 1]])
    ledger = equal_weight(StatefulTradingEnv(market, TradingRules(fee_bps=0, initial_cash=100)))
    np.testing.assert_allclose(ledger["equity"], [100, 150, 225])


@pytest.mark.parametrize("mode", ["discrete", "target_weights", "buy_hold_sell", "trade"])
@pytest.mark.parametrize("every", [5, 20])
def test_random_policies_trade_as_much_as_asked(tiny_market, mode, every):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, 400).cumsum())
    env = StatefulTradingEnv(tiny_market(prices), TradingRules(mode))
    env.action_space.seed(3)
    agent = run_policy(env, _seldom(env, every))
    policies = random_policies(env, seed=5, n_policies=8, turnover_of=agent)
    assert np.mean([turnover(ledger) for ledger in policies]) == pytest.approx(turnover(agent), rel=0.35)


def _seldom(env, every):
    bar, action = 0, None

    def act(_):
        nonlocal bar, action
        if bar % every == 0 or env.rules.action_mode in {"buy_hold_sell", "trade"}:
            action = env.action_space.sample()
        bar += 1
        if bar % every and env.rules.action_mode == "trade":
            return np.zeros(1)
        return 1 if bar % every and env.rules.action_mode == "buy_hold_sell" else action

    return act


def test_a_policy_with_a_memory_begins_each_run_anew(tiny_market):
    class Counts:
        begun = 0

        def begin_episode(self):
            self.begun += 1

        def __call__(self, observation):
            return 1

    act = Counts()
    env = StatefulTradingEnv(tiny_market(close=[90, 110, 150], open=[90, 100, 120]), TradingRules())
    run_policy(env, act)
    run_policy(env, act)
    assert act.begun == 2
