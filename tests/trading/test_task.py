import json
import os
import pickle
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.shared_folders import new_memory_map_folder
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.splits import Split
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import TradedMarket

CONFIG = TradingConfig(features=("log_return_1", "rsi_14"), window=3, episode_length=20)
MARKET = synthetic_market(n_bars=300)


def _flat(observation):
    return 1


def _follow(observation):
    return int(observation[0] > 0) * 2


def test_training_sees_its_own_split_and_nothing_after():
    task = TradingTask(CONFIG, market=MARKET)
    env = task.train_env_fns(2)[1]()
    assert isinstance(env, FastTradingEnv)
    # 14 bars of warm-up and 2 of the window: 284 are left, and 70 % of them end at 16 + 199.
    assert env.market.times[-1] == MARKET.times[16 + 199 - 1]
    assert env.market.times[0] == MARKET.times[14]
    later = task.evaluation_env("validation").market.times
    assert later[2] == MARKET.times[16 + 199]  # its first decision is the first bar after, the window looks back
    assert task.evaluation_env("all").market.n_bars == 300 - 14


def test_what_comes_after_the_training_split_changes_neither_scaler_nor_observation():
    arrays = {name: getattr(MARKET, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for values in arrays.values():
        values[215:] *= 17.0
    changed = TradingTask(CONFIG, market=market_from_arrays(MARKET.symbols, MARKET.times, **arrays))
    task = TradingTask(CONFIG, market=MARKET)
    assert task.state() == changed.state()
    one, other = (t.train_env_fns(1)[0]() for t in (task, changed))
    np.testing.assert_array_equal(one.market.features, other.market.features)
    np.testing.assert_array_equal(one.market.close, other.market.close)


def test_the_best_policy_is_chosen_without_the_test_split():
    task = TradingTask(CONFIG, market=MARKET)
    scores = [task.score(_follow)]
    validation, test = task.account.split("validation"), task.account.split("test")
    assert (validation.start, validation.stop, test.start) == (215, 257, 257)  # 16 + 70 %, 16 + 85 % of 284
    for first in (validation.start + 20, test.start):
        arrays = {name: getattr(MARKET, name).copy() for name in ("open", "high", "low", "close", "volume")}
        for values in arrays.values():
            values[first:] *= np.linspace(1, 2, 300 - first)[:, None]
        changed = TradingTask(CONFIG, market=market_from_arrays(MARKET.symbols, MARKET.times, **arrays))
        scores.append(changed.score(_follow))
    assert scores[0] == scores[2] != scores[1]


def test_the_score_may_be_the_sharpe_ratio_of_the_same_pass():
    task = TradingTask(replace(CONFIG, score="sharpe"), market=MARKET)
    returns = np.diff(equity := run_policy(task.evaluation_env("validation"), _follow)["equity"]) / equity[:-1]
    ratio = returns.mean() / returns.std(ddof=1) * np.sqrt(MARKET.periods_per_year)
    assert task.score(_follow) == pytest.approx(ratio, rel=1e-12)
    assert task.score(_flat) == 0.0  # it neither earns nor risks anything


@pytest.mark.parametrize("score", ["log_return", "sharpe"])
def test_the_score_of_an_account_with_nothing_left_is_below_all_others(monkeypatch, score):
    monkeypatch.setattr(FastTradingEnv, "equity", property(lambda env: 0.0))
    assert TradingTask(replace(CONFIG, score=score), market=MARKET).score(_follow) == -np.inf


def test_other_fractions_make_the_task_that_they_would_make_as_settings():
    whole = TradingTask(CONFIG, market=MARKET)
    other = whole.with_fractions(train=0.4, validation=0.2)
    anew = TradingTask(replace(CONFIG, train_fraction=0.4, validation_fraction=0.2), market=MARKET)
    assert (other.config, other.state()) == (anew.config, anew.state())
    for name in ("train", "validation", "test"):
        assert other.account.split(name) == anew.account.split(name)
        np.testing.assert_array_equal(other.account.bars_of(name).features, anew.account.bars_of(name).features)
    assert whole.state() == TradingTask(CONFIG, market=MARKET).state() != other.state()


def _task_on(splits):
    return TradingTask(CONFIG, accounts={"": TradedMarket(CONFIG, market=MARKET, splits=splits)})


def test_the_score_is_that_of_a_ledger_and_of_a_long_split_that_of_its_end(monkeypatch):
    task = TradingTask(CONFIG, market=MARKET)
    equity = run_policy(task.evaluation_env("validation"), _follow)["equity"]
    assert task.score(_follow) == np.log(equity[-1] / equity[0])
    monkeypatch.setattr("ml_pipeline.trading.traded_market._MOST_SCORED", 20)
    last = task.account.split("validation")
    splits = {name: task.account.split(name) for name in ("train", "test")}
    splits["validation"] = Split("validation", last.stop - 20, last.stop)
    assert task.score(_follow) == _task_on(splits).score(_follow)


def test_scaled_features_of_the_training_split_have_mean_0_and_deviation_1():
    features = TradingTask(CONFIG, market=MARKET).train_env_fns(1)[0]().market.features
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(features.std(axis=0), 1, atol=0.02)


def test_factories_share_one_market_when_pickled():
    factories = TradingTask(CONFIG, market=MARKET).train_env_fns(8)
    assert len(cloudpickle.dumps(factories)) < 1.1 * len(cloudpickle.dumps(factories[:1]))
    first, second = (make() for make in cloudpickle.loads(cloudpickle.dumps(factories[:2])))
    assert first.market is second.market


def test_evaluation_stands_beside_its_baselines_and_is_written(tmp_path):
    task = TradingTask(CONFIG, seed=4, market=MARKET)
    result = task.evaluate(_flat, "validation", tmp_path)
    assert result["agent"]["total_return"] == 0
    assert result["buy_and_hold"]["n_trades"] == 1
    assert result["random"]["costs_paid"] == 0  # guessing trades as much as the agent: not at all
    assert "validation split" in result["table"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "equity.png",
        "evaluation.json",
        "ledger.csv",
        "trades.csv",
    ]
    first, again = (TradingTask(CONFIG, seed=4, market=MARKET).evaluate(_follow, "validation") for _ in range(2))
    np.testing.assert_equal(first["random"], again["random"])  # NaN where both are
    assert first["random"]["costs_paid"] > 0


def test_the_page_stands_alone_and_the_figures_are_json(tmp_path):
    task = TradingTask(CONFIG, market=MARKET)
    result = task.evaluate(_follow, "test", tmp_path, page=True)
    text = (tmp_path / "report.html").read_text()
    assert text.count("data:image/png;base64,") == 1
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "break" in text
    assert "break" in result["table"]
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert list(figures["return_by_fee_bps"]) == ["0", "1", "5", "10", "25"]
    assert figures["return_by_delay_bars"]["0"] == figures["return_by_fee_bps"]["5"] == figures["agent"]["return"]


def test_a_checkpoint_judged_on_other_data_keeps_scaler_and_shape():
    task = TradingTask(replace(CONFIG, allow_short=False), market=MARKET)
    state = json.loads(json.dumps(task.state()))
    again = TradingTask.from_state(state, TradingConfig(fee_bps=1))
    assert again.account.market.n_bars == 12_000
    assert again.state() == task.state()
    env, trained = again.evaluation_env("all"), task.evaluation_env()
    assert env.observation_space == trained.observation_space
    assert env.action_space == trained.action_space
    assert env.rules.fee_bps == 1


def test_a_checkpoint_finds_its_symbols_in_a_larger_market(monkeypatch):
    market = synthetic_market(n_bars=300, n_symbols=3)
    task = TradingTask(CONFIG, market=market.select(["SYNTH3", "SYNTH1"]))
    monkeypatch.setattr("ml_pipeline.trading.traded_market.load_configured_market", lambda config: market)
    assert TradingTask.from_state(task.state(), CONFIG).symbols == ("SYNTH3", "SYNTH1")
    one = TradingTask(CONFIG, market=MARKET)
    with pytest.raises(UserError, match=r"on 1 symbol \(SYNTH\), but the data have 3.*; use data with the same number"):
        TradingTask.from_state(one.state(), CONFIG)


@pytest.mark.parametrize("state", [{}, {"window": 1}])
def test_no_state_of_a_task(state):
    with pytest.raises(UserError, match="not the state of a trading task"):
        TradingTask.from_state(state, CONFIG)


def test_an_unknown_split_and_an_unknown_symbol():
    with pytest.raises(UserError, match=r'no split "tset"\. Did you mean "test"'):
        TradingTask(CONFIG, market=MARKET).evaluation_env("tset")
    with pytest.raises(UserError, match=r'no symbol "BTC" in the market\. Known names: SYNTH'):
        TradingTask(replace(CONFIG, symbols=("BTC",)))


@pytest.mark.parametrize(
    ("n_bars", "config", "sentence"),
    [
        (1, CONFIG, "the built-in market has too few bars: 1, but feature rsi_14 needs 15"),
        (20, CONFIG, "The split validation has 0 of the 20 bars"),
        (
            40,
            replace(CONFIG, window=60),
            "The split train has 0 of the .* bars of .* after a warm-up of .* bars for features and window",
        ),
    ],
)
def test_too_few_bars(n_bars, config, sentence):
    with pytest.raises(UserError, match=sentence):
        TradingTask(config, market=synthetic_market(n_bars=n_bars))


def test_a_constant_feature_is_seen_as_zero():
    n = 120
    days = np.datetime64("2024-01-01") + np.arange(n)
    market = market_from_arrays(["A"], days, np.full(n, 10.0))
    task = TradingTask(TradingConfig(), market=market)
    observation, _ = task.train_env_fns(1)[0]().reset(seed=0)
    np.testing.assert_array_equal(observation, 0)
    constants = "A:log_return_1, A:log_return_5, A:log_return_20 and 7 others"
    start = "constant in the training split and therefore observed as 0"
    assert task.notices[-1] == f"{start}: {constants}; leave such features out"
    assert TradingTask(TradingConfig(), market=synthetic_market(n_bars=300)).notices == ()
    assert "-" in task.evaluate(_flat)["table"]


def test_one_constant_feature_more_than_are_named_is_one_other():
    market = market_from_arrays(["A"], np.datetime64("2024-01-01") + np.arange(120), np.full(120, 10.0))
    task = TradingTask(TradingConfig(features=tuple(f"log_return_{n}" for n in (1, 2, 3, 4))), market=market)
    assert ": A:log_return_1, A:log_return_2, A:log_return_3 and 1 other;" in task.notices[-1]


@pytest.mark.parametrize(
    ("name", "periods", "n_assets"),
    [
        ("FOREX_EURUSD_1H_ASK.csv", 260 * 24, 1),
        ("BTC_USD-Hourly.csv", 365 * 24, 1),
        ("bitstamp_BTC_ETH_LTC_USD_d.csv", 365, 3),
        ("dj30_test_2021.csv", 252, 29),
    ],
)
def test_real_markets_are_traded_from_end_to_end(market_file, name, periods, n_assets):
    task = TradingTask(TradingConfig(data=market_file(name)))
    assert task.account.market.periods_per_year == periods
    for split in ("train", "test"):
        env = task.evaluation_env(split)
        env.action_space.seed(0)
        observation, _ = env.reset(seed=0)
        assert np.all(np.isfinite(observation))
        for _ in range(10):
            observation, reward, *_ = env.step(env.action_space.sample())
            assert np.all(np.isfinite(observation))
            assert np.isfinite(reward)
    assert len(task.account.market.symbols) == n_assets


@pytest.mark.slow
def test_a_large_market_is_mapped_and_goes_with_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ml_pipeline.trading.traded_market._WORTH_MAPPING", 0)
    script = (
        "import ml_pipeline.trading.traded_market as t\n"
        "from ml_pipeline.trading.market.synthetic import synthetic_market\n"
        "t._WORTH_MAPPING = 0\n"
        "traded = t.TradedMarket(t.TradingConfig(), market=synthetic_market(n_bars=300))\n"
        "print(traded.train_env_fn()().market.close.filename)\n"
    )
    path = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert path.endswith("close.npy")
    assert not Path(path).parent.exists()
    env = TradingTask(CONFIG, market=MARKET).train_env_fns(1)[0]()
    plain = TradedMarket(CONFIG, market=MARKET).bars_of("train")
    twin = cloudpickle.loads(cloudpickle.dumps(env.market))
    np.testing.assert_array_equal(twin.features, plain.features)
    assert isinstance(twin.features, np.memmap)
    assert not twin.features.flags.writeable
    assert len(cloudpickle.dumps(env.market)) < 5_000
    part = cloudpickle.loads(cloudpickle.dumps(env.market.assets(np.array([0]))))
    np.testing.assert_array_equal(part.close, plain.close)


def test_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, signal; from ml_pipeline.trading.envs import shared_folders as folders\n"
        "folders.new_memory_map_folder(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    mine = new_memory_map_folder()
    assert not left.exists()
    new_memory_map_folder()
    assert mine.exists()


def test_the_state_of_an_environment_is_small_and_whole():
    env = TradingTask(CONFIG, market=synthetic_market(n_bars=3000)).train_env_fns(1)[0]()
    env.reset(seed=0)
    env.step(2)
    state = pickle.dumps({name: value for name, value in env.__getstate__().items() if name != "market"})
    assert len(state) < 20_000
    twin = cloudpickle.loads(cloudpickle.dumps(env))
    np.testing.assert_array_equal(twin.step(0)[0], env.step(0)[0])


@pytest.mark.parametrize(
    ("changes", "trains"),
    [
        ({}, True),  # all of the equity in one asset is within the limits
        ({"max_position": 0.5}, False),
        ({"max_gross": 0.5}, False),
        ({"max_position": 0.5, "action_mode": "trade"}, True),  # there nothing is refused
        ({"symbols": ("SYNTH1", "SYNTH2")}, False),  # weights of 1 and 1
        ({"symbols": ("SYNTH1", "SYNTH2"), "action_mode": "discrete", "max_position": 0.5}, True),
    ],
)
def test_rules_that_would_refuse_what_exploring_tries_do_not_train(changes, trains):
    config = replace(CONFIG, on_limit="refuse", **{"symbols": ("SYNTH1",), **changes})
    task = TradingTask(config, market=synthetic_market(n_bars=300, n_symbols=3).select(config.symbols))
    refused = pytest.raises(UserError, match=r'on_limit "refuse" .* train with on_limit "clip"')
    for make in (task.train_env_fns, task.batched_train_env):
        with nullcontext() if trains else refused:
            make(2)


def test_a_task_shows_its_market():
    task = TradingTask(TradingConfig())
    assert repr(task) == f"TradingTask({task.account.market!r})"


@pytest.mark.parametrize("given", [True, False], ids=["a market", "a file"])
def test_the_number_of_bars_per_year_can_be_given(given):
    """It annualizes every figure and divides the yearly fee of borrowing."""
    config = replace(CONFIG, periods_per_year=1000, symbols=("SYNTH",), borrow_bps_per_year=1000)
    task = TradingTask(config, market=MARKET if given else None)
    usual = TradingTask(replace(config, periods_per_year=None), market=MARKET if given else None)
    figures, usual_figures = (each.evaluate(_follow, "test") for each in (task, usual))
    assert "Annualized by 1000 (set by periods_per_year)." in figures["table"]
    assert figures["agent"]["volatility"] == pytest.approx(
        usual_figures["agent"]["volatility"] * (1000 / 252) ** 0.5, rel=0.05
    )
    assert figures["agent"]["costs_paid"] < usual_figures["agent"]["costs_paid"]
    with pytest.raises(UserError, match="periods_per_year must be"):
        replace(CONFIG, periods_per_year=0)


def test_other_splits_are_those_of_a_task_made_with_them_and_look_for_leaks_once(monkeypatch):
    looked = []
    monkeypatch.setattr("ml_pipeline.trading.traded_market.check_features", lambda *_, **__: looked.append(1) or ())
    splits = {
        "train": Split("train", 60, 200),
        "validation": Split("validation", 200, 240),
        "test": Split("test", 240, 299),
    }
    whole, made = TradedMarket(CONFIG, market=MARKET), TradedMarket(CONFIG, market=MARKET, splits=splits)
    for traded in (whole.with_splits(splits), whole.with_splits(splits)):
        assert traded.split("test") == splits["test"]
        assert traded.state() == made.state()
        assert traded.notices == made.notices
        np.testing.assert_array_equal(traded.bars_of("test").features, made.bars_of("test").features)
    assert whole.split("test") != splits["test"]
    assert len(looked) == 2  # of the whole and of the one that was made
