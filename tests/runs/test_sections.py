"""Files in sections, as pipelines around Stable-Baselines3 have them, become the settings of this program."""

import json
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.runs.sections import flat_settings, is_sectioned

SOURCE = Path("settings.json")
AGENT = {
    "algo": "PPO",
    "total_timesteps": 1e5,
    "save_path": "models/ppo.zip",
    "kwargs": {
        "policy": "MlpPolicy",
        "learning_rate": {"type": "linear", "initial_value": 0.0003},
        "n_steps": 2048,
        "batch_size": 256,
        "n_epochs": 10,
        "gamma": 0.99,
        "ent_coef": 0.01,
        "normalize_advantage": True,
        "use_sde": False,
        "verbose": 2,
        "seed": 42,
        "policy_kwargs": {"net_arch": [{"pi": [256, 256], "vf": [256, 256]}], "activation_fn": "torch.nn.ReLU"},
    },
}
AGENT_FLAT = {
    "total_timesteps": 1e5,
    "learning_rate": 0.0003,
    "learning_rate_schedule": "linear",
    "n_steps": 2048,
    "minibatch_size": 256,
    "n_epochs": 10,
    "gamma": 0.99,
    "ent_coef": 0.01,
    "normalize_advantages": True,
    "seed": 42,
    "hidden_sizes": [256, 256],
    "activation": "relu",
}
PORTFOLIO = {
    "initial_cash": 100_000,
    "maintain_history": False,
    "buy_cost_pct": 0.001,
    "sell_cost_pct": [0.002, 0.002],
    "trade_mode": "cont",
    "action_threshold": 0.1,
    "trade_limit_percent": 0.1,
}
PORTFOLIO_FLAT = {
    "initial_cash": 100_000,
    "fee_bps": pytest.approx(10),
    "sell_fee_bps": pytest.approx(20),
    "action_mode": "trade",
    "allow_short": False,
    "action_threshold": 0.1,
    "trade_limit_percent": pytest.approx(10),
}


def test_the_agent_is_the_same_as_a_section_and_alone():
    assert flat_settings({"agent_config": AGENT}, SOURCE) == AGENT_FLAT
    assert flat_settings(AGENT, SOURCE) == AGENT_FLAT


def test_an_account_is_the_same_as_a_section_and_within_the_environment():
    assert flat_settings({"portfolio_config": PORTFOLIO}, SOURCE) == PORTFOLIO_FLAT
    within = flat_settings({"stock_env": {"portfolio_config": PORTFOLIO, "lookback_window": 60}}, SOURCE)
    assert within == {**PORTFOLIO_FLAT, "window": 60}
    short = flat_settings({"portfolio_config": {"short_selling": True, "trade_mode": "discrete"}}, SOURCE)
    assert short == {"action_mode": "buy_hold_sell", "allow_short": True}


@pytest.mark.parametrize(
    ("reward", "flat"),
    [
        ({"type": "log_return"}, {"reward": "log_return"}),
        ({"type": "calmar_ratio", "reward_scaling": 100.0}, {"reward": "calmar_ratio", "reward_scale": 100.0}),
        (
            {"type": "fast_profit_reward", "reward_scaling": 1e4, "kwargs": {}},
            {"reward": "fast_profit_reward", "reward_kwargs": {"reward_scaling": 1e4}},
        ),
        (
            {"type": "sharpe_ratio", "reward_scaling": 10, "kwargs": {"risk_free_rate": 0.02}},
            {"reward": "sharpe_ratio", "reward_scale": 10, "reward_kwargs": {"risk_free_rate": 0.02}},
        ),
    ],
)
def test_a_reward_with_its_scaling_and_its_arguments(reward, flat):
    assert flat_settings({"reward_config": reward}, SOURCE) == flat


def test_a_section_may_be_a_file_beside_the_settings(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "ppo.json").write_text(json.dumps(AGENT))
    (tmp_path / "env.yaml").write_text("reward_config: {type: log_return}\n")
    content = {"agent_config": "agents/ppo.json", "stock_env": "env.yaml", "n_envs": 8}
    flat = flat_settings(content, tmp_path / "settings.json")
    assert flat == {**AGENT_FLAT, "reward": "log_return", "n_envs": 8}
    with pytest.raises(UserError, match=r"none\.json cannot be read"):
        flat_settings({"agent_config": "none.json"}, tmp_path / "settings.json")


def test_flat_files_stay_what_they_are():
    assert not is_sectioned({"n_envs": 8, "reward": "log_return", "total_timesteps": None})
    assert is_sectioned({"reward_config": {}})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"agent_config": {"algo": "a2c"}}, 'algo must be "ppo", which is what this program trains, but got "a2c"'),
        (
            {"agent_config": {"kwargs": {"bach_size": 3}}},
            'unknown setting "bach_size" in kwargs. Did you mean "batch_size"',
        ),
        (
            {"agent_config": {"kwargs": {"use_sde": True}}},
            "use_sde must be False, for there is no counterpart, but got True",
        ),
        ({"agent_config": 7}, "agent_config must be a section of settings, but got 7"),
        ({"agent_config": {"kwargs": {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [9]}}}}}, "the same layers"),
        ({"agent_config": {"kwargs": {"learning_rate": {"type": "linear"}}}}, "have type and initial_value"),
        ({"agent_config": {"kwargs": {"policy": "Mlp"}}}, 'policy must be "MlpPolicy"'),
        ({"portfolio_config": {"trade_limit_percent": 10}}, "is a fraction, where 0.1 means 10 %, but got 10"),
        ({"portfolio_config": {"buy_cost_pct": [0.1, 0.2]}}, "costs must be the same for all symbols"),
        ({"portfolio_config": {"buy_cost_pct": "much"}}, "fee_bps must be a number, but got 'much'"),
        ({"portfolio_config": {"trade_mode": "other"}}, 'trade_mode must be "cont" or "discrete"'),
        ({"portfolio_config": {"max_positions": 3}}, "max_positions must be None, for there is no counterpart"),
        ({"reward_config": {"reward_scaling": 3}}, "reward_config needs a type"),
        ({"reward_config": {"type": "fast_profit"}, "reward": "log_return"}, "reward is set twice"),
        ({"stock_env": {"hmax": 1}}, 'unknown setting "hmax" in stock_env'),
    ],
)
def test_what_cannot_be_had_is_named(content, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        flat_settings(content, SOURCE)
    assert str(error.value).startswith("settings.json: ")


def test_the_example_in_the_repository_is_read():
    path = Path(__file__).parents[2] / "configs" / "fast_training_ppo.json"
    flat = flat_settings(read_mapping(path), path)
    assert flat["reward_kwargs"] == {"reward_scaling": 10_000.0}
    assert flat["hidden_sizes"] == [64, 64]
