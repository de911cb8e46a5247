"""The decider beside the environment of a backtest: the same observations, choices and ledger, bit for bit."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.accounts.single import FillTables, PlainAccount
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.timeframes import Timing
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from tests.examples import COSTLY

FEATURES = ("log_return_1", "rsi_3", "volume_zscore_4", "ema_distance_3@15m", "tradable", "time_of_day")
TRADING = TradingConfig(features=FEATURES, window=3, fee_bps=7.0)


def minutes(n_assets, *, seed=0, n_bars=120, missing=0.15):
    generator = np.random.default_rng(seed)
    shape = (n_bars, n_assets)
    close = 100 * np.exp(generator.normal(0, 0.01, shape).cumsum(axis=0))
    close[generator.random(shape) < missing] = np.nan
    if n_assets > 1:
        close[:40, 0] = np.nan  # listed late
    open_ = close * np.exp(generator.normal(0, 0.002, shape))
    return market_from_arrays(
        [f"S{a}" for a in range(n_assets)],
        np.datetime64("2024-03-04T14:00", "ns") + np.arange(n_bars) * np.timedelta64(1, "m"),
        close,
        open=open_,
        high=np.maximum(open_, close) * 1.002,
        low=np.minimum(open_, close) * 0.998,
        volume=generator.exponential(1e3, shape),
        half_spread=generator.uniform(0, 0.001, shape),
        timing=Timing(60 * 10**9, "open"),
    )


def deploy(folder, market, trading=TRADING, *, seed=1, change=lambda saved: None, **ppo):
    """(the task of the market, an untrained policy, the same as it is deployed)."""
    config = TrainConfig(trading=trading, ppo=PPOConfig(hidden_sizes=(8,), **ppo))
    task = TradingTask(trading, market=market)
    env = task.evaluation_env("all")
    policy = Policy(env.observation_space, env.action_space, config.ppo, seed=seed, device="cpu")
    generator = np.random.default_rng(seed)
    state = policy.state_dict()
    for weight in state["network"].values():  # large weights, so that actions vary
        weight.add_(weight.new_tensor(generator.normal(0, 1.0, weight.shape)))
    policy.load_state_dict(state)
    saved = {"config": flatten(config), "task": task.state(), "trainer": {"policy": policy.state_dict()}}
    change(saved)
    folder.mkdir(exist_ok=True)
    save_checkpoint(folder / "best.pt", saved)
    return task, policy, load_deployed_policy(folder)


def live_ledger(task, deployed, market, *, restart_at=None):
    """(equity, cash, positions) bar by bar of the loop: one bar at a time through the decider and the kernel."""
    decider = PolicyRunner(deployed, market.symbols, market.timing)
    prepared, rules = task.account.bars_of("all"), deployed.rules
    offset = market.n_bars - prepared.n_bars
    closings = prepared.closings(rules.fill_at) if rules.flat_at_close else None
    account = decision = fills = None
    ledger = []
    for t, bars in enumerate(bar_sets_of(market)):
        row = t - offset
        if account is not None:  # what was decided at the bar before is filled, where it can be
            fillable = fills[2][row - 1]
            may_trade = [bool(may and can) for may, can in zip(decision.may_trade, fillable, strict=True)]
            account.step(row - 1, decision.weights, may_trade, **({"closing": True} if decision.closing else {}))
            lapsed = [symbol for symbol, can in zip(market.symbols, fillable, strict=True) if not can]
            decider.note_settled(lapsed, filled=account.filled, exited=account.exited, holdings=account.holdings)
        if not decider.observe(bars):
            continue
        if account is None:
            fills = prepared.fill_tables(rules.fill_at)
            tables = FillTables(*fills[:2], prepared.close, prepared.bar_tables(rules))
            account = PlainAccount(tables, rules.terms(prepared.periods_per_year), deployed.clip)
            account.begin(row, rules.initial_cash)
        ledger.append((account.equity, account.cash, *account.holdings))
        if row == prepared.n_bars - 1:
            break
        if t == restart_at:
            state = json.loads(json.dumps(decider.state()))
            decider = PolicyRunner(deployed, market.symbols, market.timing)
            decider.observe_all(list(bar_sets_of(market))[: t + 1])
            decider.set_state(state)
        decision = decider.decide(account.weights(), closing=closings is not None and bool(closings[row]))
    return np.array(ledger)


def backtest_ledger(task, policy):
    ledger = run_policy(task.evaluation_env("all"), policy.act)
    names = ["equity", "cash", *(f"position_{symbol}" for symbol in task.account.market.symbols)]
    return np.stack([ledger[name] for name in names], axis=1)


def assert_same(task, policy, deployed, **settings):
    backtest = backtest_ledger(task, policy)
    live = live_ledger(task, deployed, task.account.market, **settings)
    assert live.tobytes() == backtest.tobytes()
    assert np.count_nonzero(np.diff(backtest[:, 2:], axis=0)) > 5  # it traded


@pytest.mark.parametrize("n_assets", [1, 10])
@pytest.mark.parametrize(
    "changes",
    [
        {"action_mode": "discrete"},
        {"action_mode": "discrete", "allow_short": False, "fill_at": "close"},
        {"action_mode": "buy_hold_sell", "lot_size": 0.5},
        {"action_mode": "target_weights", "action_threshold": 0.2, "max_position": 0.4},
        {"action_mode": "trade", "trade_limit_percent": 40.0, "action_threshold": 0.3},
        {"action_mode": "discrete", "limit_bps": 5.0, "stop_loss": 0.01},
        {"action_mode": "target_weights", "max_gross": 3.0, "take_profit": 0.005},
    ],
)
def test_bar_by_bar_makes_the_ledger_of_the_backtest(tmp_path, n_assets, changes):
    task, policy, live = deploy(tmp_path / "run", minutes(n_assets), replace(TRADING, **changes))
    assert_same(task, policy, live)


def test_so_does_a_policy_with_memory_also_across_a_restart(tmp_path):
    task, policy, live = deploy(tmp_path / "run", minutes(2), memory="lstm", memory_size=8)
    assert_same(task, policy, live)
    assert_same(task, policy, live, restart_at=80)


def test_positions_are_closed_before_the_end_of_a_session(tmp_path):
    trading = replace(TRADING, flat_at_close=True, session="14:00-15:30")
    market = minutes(2, n_bars=300)
    market = replace(market, timing=Timing(60 * 10**9, "open", trading.form().clock))
    times = np.where(
        np.arange(300) < 90, market.times, market.times + np.timedelta64(22, "h") + np.timedelta64(30, "m")
    )
    task, policy, live = deploy(tmp_path / "run", replace(market, times=times), trading)
    assert_same(task, policy, live, restart_at=60)


@settings(max_examples=COSTLY)
@given(seed=st.integers(0, 2**32 - 1))
def test_choices_follow_what_was_filled_whatever_is_missing(tmp_path_factory, seed):
    trading = replace(TRADING, features=("log_return_1", "rsi_3"), action_mode="discrete", window=1)
    market = minutes(2, seed=seed, n_bars=90, missing=0.4)
    task, policy, live = deploy(tmp_path_factory.mktemp("run"), market, trading, seed=seed % 1000)
    backtest, bar_by_bar = backtest_ledger(task, policy), live_ledger(task, live, task.account.market)
    assert bar_by_bar.tobytes() == backtest.tobytes()
