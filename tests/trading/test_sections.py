"""The sections about trading become the settings of trading."""

from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.sections import flatten_sections
from ml_pipeline.trading.envs.rewards import RewardFunction
from ml_pipeline.trading.sections import TRADING_SECTIONS

SOURCE = Path("settings.json")
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


def test_an_account_is_the_same_as_a_section_and_within_the_environment():
    assert flatten_sections({"portfolio_config": PORTFOLIO}, TRADING_SECTIONS, SOURCE) == PORTFOLIO_FLAT
    within = flatten_sections(
        {"stock_env": {"portfolio_config": PORTFOLIO, "lookback_window": 60}}, TRADING_SECTIONS, SOURCE
    )
    assert within == {**PORTFOLIO_FLAT, "window": 60}
    short = flatten_sections(
        {"portfolio_config": {"short_selling": True, "trade_mode": "discrete"}}, TRADING_SECTIONS, SOURCE
    )
    assert short == {"action_mode": "buy_hold_sell", "allow_short": True}


@pytest.mark.parametrize(
    "content",
    [
        {"reward_config": {"type": RewardFunction}},
        {"environment": {"reward_type": RewardFunction}},
        {"environment": {"reward": RewardFunction}},
    ],
)
def test_a_reward_may_be_a_class(content):
    flat = {"reward": "ml_pipeline.trading.envs.rewards:RewardFunction"}
    # Whether it is complete is looked at where it is made.
    assert flatten_sections(content, TRADING_SECTIONS, SOURCE) == flat


def test_a_value_that_two_sections_agree_on_is_no_conflict():
    content = {
        "symbols": ("EURUSD", "GBPUSD"),
        "data_config": {"symbols": ["EURUSD", "GBPUSD"], "path": "prices.csv"},
        "environment": {"data_path": Path("prices.csv")},
    }
    flat = {"symbols": ["EURUSD", "GBPUSD"], "data": Path("prices.csv")}
    assert flatten_sections(content, TRADING_SECTIONS, SOURCE) == flat
    content["symbols"] = ("GBPUSD", "EURUSD")
    with pytest.raises(UserError, match="symbols is set twice"):
        flatten_sections(content, TRADING_SECTIONS, SOURCE)


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
    assert flatten_sections({"reward_config": reward}, TRADING_SECTIONS, SOURCE) == flat


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"portfolio_config": {"trade_limit_percent": 10}}, "is a fraction, so 0.1 means 10 %, but got 10"),
        ({"portfolio_config": {"buy_cost_pct": [0.1, 0.2]}}, "costs must be the same for all symbols"),
        ({"portfolio_config": {"buy_cost_pct": "much"}}, "fee_bps must be a number, but got 'much'"),
        ({"portfolio_config": {"trade_mode": "other"}}, 'trade_mode must be "cont" or "discrete"'),
        ({"portfolio_config": {"max_positions": 3}}, "max_positions must be None, as nothing else is supported"),
        ({"reward_config": {"reward_scaling": 3}}, "reward_config needs a type"),
        ({"reward_config": {"type": 3}}, "A reward in settings must be a name"),
        ({"reward_config": {"type": "fast_profit"}, "reward": "log_return"}, "reward is set twice"),
        ({"stock_env": {"hmax": 1}}, 'unknown setting "hmax" in stock_env'),
    ],
)
def test_what_cannot_be_had_is_named(content, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        flatten_sections(content, TRADING_SECTIONS, SOURCE)
    assert str(error.value).startswith("settings.json: ")


def test_a_section_of_data_names_their_columns():
    data = {"path": "prices.csv", "columns": {"time": "timestamp_utc", "close": "Last"}, "date_order": "dmy"}
    flat = {"data": "prices.csv", "columns": {"time": "timestamp_utc", "close": "Last"}, "date_order": "dmy"}
    assert flatten_sections({"data_config": data}, TRADING_SECTIONS, SOURCE) == flat
    within = flatten_sections({"environment": {"columns": {"close": "Last"}}}, TRADING_SECTIONS, SOURCE)
    assert within == {"columns": {"close": "Last"}}
