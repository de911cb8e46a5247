"""`TradingEnv(data, cfg, features)` is the stateful environment with the settings that its arguments name."""

import json

import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.envs.rewards import FastProfitReward, RewardFunction
from ml_pipeline.trading.gym_ids import FastTrainingEnv, StatefulTradingEnv, TradingEnv
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig

CFG = {
    "lookback_window": 4,
    "reward_config": {"type": "fast_profit_reward", "reward_scaling": 500.0},
    "portfolio_config": {"initial_cash": 50_000, "buy_cost_pct": 0.001, "sell_cost_pct": 0.002},
}


@pytest.fixture(scope="module")
def market():
    return synthetic_market(n_bars=300)


@pytest.mark.filterwarnings("ignore:.*render.*")
def test_sections_set_window_reward_and_account(market):
    env = TradingEnv(market, CFG, ["rsi_14", "log_return_1"])
    check_env(env, skip_render_check=True)
    assert env.observation_space.shape == (4 * 2 + 1,)
    assert isinstance(env.reward, FastProfitReward)
    assert env.reward.reward_scaling == 500.0
    assert (env.rules.initial_cash, env.rules.fee_bps, env.rules.sell_fee_bps) == (50_000, 10.0, 20.0)
    assert env.rules.action_mode == "trade"


def test_it_passes_through_all_bars_and_keeps_a_ledger(market):
    env = TradingEnv(market, CFG)
    assert isinstance(env, StatefulTradingEnv)
    env.reset(seed=0)
    n_steps, over = 0, False
    while not over:
        *_, over, _ = env.step(np.array([0.3], dtype=np.float32))
        n_steps += 1
    ledger = env.ledger()
    assert len(ledger["equity"]) == n_steps + 1
    assert ledger["time"][-1] == market.times[-1]


def test_settings_may_be_flat_or_an_object(market):
    flat = TradingEnv(market, {"fee_bps": 7.0, "window": 2}, ["rsi_14"])
    made = TradingEnv(market, TradingConfig(fee_bps=7.0, window=2, features=("rsi_14",)))
    assert flat.rules == made.rules
    np.testing.assert_array_equal(flat.reset(seed=1)[0], made.reset(seed=1)[0])


def test_a_text_in_place_of_a_list_is_refused_as_a_whole(market):
    for make in (
        lambda: FastTrainingEnv(market, None, "rsi_14"),
        lambda: TradingEnv(market, TradingConfig(), "rsi_14"),
        lambda: TradingConfig(features="rsi_14"),
    ):
        with pytest.raises(UserError, match=r"features must be a list such as \[\"rsi_14\"\], but got 'rsi_14'\."):
            make()
    with pytest.raises(UserError, match=r"symbols must be a list such as .*, but got 'EURUSD'\."):
        TradingConfig(symbols="EURUSD")


class Constant(RewardFunction):
    def compute_reward(self, pf, df, realized_profit):
        return 1.0


@pytest.mark.parametrize(
    "cfg", [{"reward_config": {"type": Constant}}, {"reward": Constant}, TradingConfig(reward=Constant)]
)
def test_a_reward_may_be_a_class(cfg):
    env = StatefulTradingEnv(None, cfg, ["rsi_14"])
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[1] == 1.0


def test_a_reward_may_be_given_as_a_class():
    env = FastTrainingEnv(None, {}, ["rsi_14"], reward=Constant)
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[1] == 1.0


def test_data_may_be_a_frame_or_a_file(tmp_path):
    n = 120
    close = 100 * np.exp(np.random.default_rng(3).normal(0, 0.01, n).cumsum())
    frame = pl.DataFrame(
        {
            "time": np.arange("2024-01-01", "2024-04-30", dtype="datetime64[D]")[:n],
            **dict.fromkeys(("open", "high", "low", "close"), close),
        }
    )
    frame.write_csv(tmp_path / "X.csv")
    of_frame, of_file = (TradingEnv(data, CFG, ["log_return_1"]) for data in (frame, tmp_path / "X.csv"))
    np.testing.assert_array_equal(of_frame.reset(seed=0)[0], of_file.reset(seed=0)[0])


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        ({"lookback": 3}, 'There is no setting "lookback"'),
        ({"reward_config": {"type": "fast_profits"}}, 'There is no reward "fast_profits"'),
        ({"portfolio_config": {"initial_cash": -1}}, "initial_cash must be above 0"),
    ],
)
def test_settings_that_cannot_be_used(market, cfg, sentence):
    with pytest.raises(UserError, match=sentence):
        TradingEnv(market, cfg)


def test_the_three_names_trade_alike(market):
    envs = [kind(market, CFG, ["rsi_14", "log_return_1"]) for kind in (FastTrainingEnv, StatefulTradingEnv, TradingEnv)]
    generator = np.random.default_rng(0)
    results = [env.reset(seed=3)[0] for env in envs]
    for _ in range(40):
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[1], results[2])
        action = generator.uniform(-1, 1, 1).astype(np.float32)
        stepped = [env.step(action) for env in envs]
        assert stepped[0][1:4] == stepped[1][1:4] == stepped[2][1:4]
        results = [each[0] for each in stepped]


def test_all_take_the_whole_configuration_or_its_path(market, tmp_path):
    whole = {
        **CFG,
        "agent_config": {"algo": "ppo", "total_timesteps": 1e5, "kwargs": {"n_steps": 32, "batch_size": 32}},
        "training": {"vectorized_training": {"enabled": True, "n_envs": None}},
        "feature_config": {"features": ["rsi_14"]},
        "n_envs": 4,
        "seed": 1,
    }
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(whole))
    for kind in (FastTrainingEnv, StatefulTradingEnv, TradingEnv):
        made = [kind(market, cfg) for cfg in (whole, path, str(path))]
        assert made[0].rules == made[1].rules == made[2].rules
        assert made[0].observation_space.shape == made[1].observation_space.shape == (4 * 1 + 1,)
    with pytest.raises(UserError, match="cannot be read"):
        FastTrainingEnv(market, tmp_path / "none.json")


def test_fast_training_episodes_have_the_length_that_is_named(market):
    env = FastTrainingEnv(market, {"episode_length": 5})
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[3] for _ in range(5)]
    assert ends == [False] * 4 + [True]
