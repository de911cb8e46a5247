"""The simulated broker's account, added up by the books, beside the backtest's ledger: the same to the last bit."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from tests.examples import COSTLY
from tests.live.brokers.replayed import Replay, carried, new_broker

MODES = ("discrete", "target_weights", "buy_hold_sell", "trade")


def backtest(market, rules, actions):
    """The ledger of the environment for evaluation."""
    env = StatefulTradingEnv(market, rules)
    env.reset(seed=0)
    discrete = rules.action_mode in {"discrete", "buy_hold_sell"}
    for action in actions:
        _, _, terminated, truncated, _ = env.step(int(action[0]) if discrete and len(action) == 1 else action)
        if terminated or truncated:
            break
    return env.ledger()


def with_sessions(market, rules, seed):
    ends = np.random.default_rng(seed).random(market.n_bars) < 0.2
    ends[[5, -1]] = True, False
    return replace(market, session_end=ends), replace(rules, flat_at_close=True)


def assert_same(ledger, expected):
    assert list(ledger) == list(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(ledger[name], column, err_msg=name)


@pytest.mark.slow
@settings(max_examples=COSTLY)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 4),
    mode=st.sampled_from(MODES),
    volatility=st.sampled_from([0.01, 0.05, 0.3]),
    within=st.booleans(),
    flat=st.booleans(),
)
@example(seed=59281, n_assets=3, mode="discrete", volatility=0.05, within=True, flat=True)
def test_books_of_a_replay_are_the_backtests_ledger(random_case, *, seed, n_assets, mode, volatility, within, flat):
    market, rules, actions = random_case(seed, n_assets, mode, volatility, within=within)
    market = carried(market)
    if flat:
        market, rules = with_sessions(market, rules, seed)
    with tempfile.TemporaryDirectory() as folder:
        broker = new_broker(market, rules, Path(folder) / "account.sqlite")
        replay = Replay(market, rules, actions, broker)
        ledger = replay.run()
        assert_same(ledger, backtest(market, rules, actions))
        account = broker.account()
        broker.close()
    assert (account.cash, account.equity) == (replay.books.cash, replay.books.equity)
    assert dict(account.positions) == replay.books.positions


@pytest.mark.slow
@settings(max_examples=COSTLY)
@given(seed=st.integers(0, 2**32 - 1), n_assets=st.integers(1, 3), mode=st.sampled_from(MODES), within=st.booleans())
def test_a_session_that_is_stopped_at_any_bar_goes_on_with_the_same_bits(random_case, *, seed, n_assets, mode, within):
    market, rules, actions = random_case(seed, n_assets, mode, 0.05, within=within)
    market = carried(market)
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "account.sqlite"
        replay = Replay(market, rules, actions, new_broker(market, rules, store))
        while not replay.over:
            replay.step()
            if generator.random() < 0.3:
                replay.broker.close()
                replay.broker = new_broker(market, rules, store)
                state = json.loads(json.dumps(replay.books.state()))
                replay.books = AccountBook(market.symbols, rules)
                replay.books.set_state(state)
        replay.broker.close()
    assert_same(replay.recorder.ledger(), backtest(market, rules, actions))
