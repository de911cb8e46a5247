import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import ACTION_MODES, TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import ActionRecorder, replayed_equity, run_policy


@pytest.mark.parametrize("mode", ACTION_MODES)
@pytest.mark.parametrize("n_assets", [1, 3])
def test_the_same_actions_make_the_same_equity_bit_for_bit(random_case, mode, n_assets):
    market, rules, actions = random_case(7, n_assets, mode, 0.03)
    one_choice = n_assets == 1 and mode in {"discrete", "buy_hold_sell"}
    waiting = iter(int(action[0]) if one_choice else action for action in actions)
    recorder = ActionRecorder(lambda _: next(waiting))
    ledger = run_policy(StatefulTradingEnv(market, rules), recorder)
    assert np.count_nonzero(ledger["filled_A"]) > 3
    np.testing.assert_array_equal(replayed_equity(market, rules, recorder.actions, window=1), ledger["equity"])


def test_late_orders_are_the_same_orders_later(tiny_market):
    # Long at the close of bar 1 and flat at that of bar 3: 110 to 130. One bar later: 120 to 120, two: 130 to 140.
    market = tiny_market([100.0, 110, 120, 130, 120, 140])
    rules = TradingRules(fee_bps=0, fill_at="close", initial_cash=100)
    actions = [1, 2, 2, 1, 1]
    equity = {delay: replayed_equity(market, rules, actions, window=1, delay=delay) for delay in range(4)}
    assert [curve[-1] for curve in equity.values()] == pytest.approx(
        [100 * 130 / 110, 100, 100 * 140 / 130, 100 * 14 / 12]
    )
    np.testing.assert_allclose(equity[1], [100, 100, 100, 100 * 13 / 12, 100, 100])


def test_a_policy_that_watches_its_position_does_not_trade_more_when_its_orders_come_late(tiny_market):
    """It buys where it holds nothing, and then keeps that: told of its fills late, it would buy and sell for ever."""
    market = tiny_market(np.linspace(100, 130, 30))
    rules = TradingRules("buy_hold_sell", fee_bps=100, initial_cash=100)
    recorder = ActionRecorder(lambda seen: 2 if seen[-1] < 0.5 else 1)
    ledger = run_policy(StatefulTradingEnv(market, rules), recorder)
    assert recorder.actions == [2] + [1] * 28
    late = replayed_equity(market, rules, recorder.actions, window=1, delay=1)
    np.testing.assert_allclose(late[2:] / late[2], market.close[2:, 0] / market.close[2, 0])  # one purchase, and held
    assert late[-1] == pytest.approx(ledger["equity"][-1] * market.open[1, 0] / market.open[2, 0])


def test_actions_are_copied_and_begin_anew_with_an_episode():
    buffer = np.zeros(2)

    class Policy:
        begun = 0

        def begin_episode(self):
            self.begun += 1

        def __call__(self, observation):
            buffer[:] = observation
            return buffer

    policy = Policy()
    recorder = ActionRecorder(policy)
    recorder(1.0)
    recorder(2.0)
    assert [action.tolist() for action in recorder.actions] == [[1, 1], [2, 2]]
    recorder.begin_episode()
    assert (recorder.actions, policy.begun) == ([], 1)


def test_a_replay_ends_where_its_account_is_ruined(tiny_market):
    market = tiny_market([100.0, 100, 1, 0.1, 0.1, 0.1])
    equity = replayed_equity(market, TradingRules(fee_bps=0, fill_at="close"), [2] * 5, window=1)
    np.testing.assert_allclose(equity, [10_000, 10_000, 100])
