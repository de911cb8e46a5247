import math
import sys
from itertools import pairwise

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.orders import PLAIN_OPS
from ml_pipeline.trading.envs.rewards import REWARDS, LogReturn, make_reward
from ml_pipeline.trading.settings import TradingConfig

EQUITY = [100.0, 110.0, 99.0, 118.8]  # returns +10 %, -10 %, +20 %
RETURNS = np.array([0.1, -0.1, 0.2])


def rewards_of(name, equity=EQUITY, scale=1.0):
    reward = make_reward(name, scale)
    state, rewards = reward.begin(PLAIN_OPS, equity[0]), []
    for before, after in pairwise(equity):
        value, state = reward.step(PLAIN_OPS, state, before, after)
        rewards.append(value)
    return np.array(rewards)


def test_log_return_sums_to_that_of_the_whole_and_is_finite_for_an_account_that_owes_money():
    assert rewards_of("log_return").sum() == pytest.approx(math.log(1.188))
    assert rewards_of("log_return", [100.0, -5.0])[0] == pytest.approx(math.log(1e-6))


def test_fast_profit_is_a_part_of_the_start():
    np.testing.assert_allclose(rewards_of("fast_profit"), [0.1, -0.11, 0.198])


def test_simple_momentum_by_hand():
    # Momentum 0.01, -0.001, 0.0191.
    np.testing.assert_allclose(rewards_of("simple_momentum"), RETURNS + np.array([0.01, -0.001, 0.0191]) / 2)


def test_differential_sharpe_by_hand():
    # At first A = B = 0: nothing to compare with. Then A = 0.001, B = 0.0001, variance 0.000099;
    # dA = -0.101, dB = 0.0099: (0.0001 * -0.101 - 0.5 * 0.001 * 0.0099) / variance^1.5.
    first, second, _ = rewards_of("differential_sharpe")
    assert first == 0
    assert second == pytest.approx((0.0001 * -0.101 - 0.5 * 0.001 * 0.0099) / 0.000099**1.5)


def test_ratios_sum_to_that_of_the_episode():
    mean = RETURNS.mean()
    assert rewards_of("sharpe_ratio").sum() == pytest.approx(mean / RETURNS.std())
    assert rewards_of("sortino_ratio").sum() == pytest.approx(mean / math.sqrt(0.01 / 3))
    assert rewards_of("calmar_ratio").sum() == pytest.approx(0.188 / 0.1)


@pytest.mark.parametrize("name", REWARDS)
def test_a_flat_curve_is_worth_nothing_and_no_curve_is_worth_nan(name):
    np.testing.assert_array_equal(rewards_of(name, [100.0] * 4), 0)
    wild = 100 * np.exp(np.random.default_rng(0).normal(0, 1, 200).cumsum())
    assert np.isfinite(rewards_of(name, wild.tolist())).all()
    assert np.isfinite(rewards_of(name, [100.0, 1e-9, 1e9, -50.0])).all()
    assert rewards_of(name, scale=3.0) == pytest.approx(3 * rewards_of(name))


@pytest.mark.parametrize("name", REWARDS)
def test_gaining_is_worth_more_than_losing(name):
    start = [100.0, 101.0, 100.0]
    assert rewards_of(name, [*start, 102.0])[-1] > rewards_of(name, [*start, 98.0])[-1]


@pytest.mark.parametrize("as_class", [True, False])
def test_a_reward_of_a_script_has_no_name_that_another_process_finds(as_class, monkeypatch):
    """Settings that name it would be of no use to an evaluation, to --resume or to the service."""
    mine = type("Mine", (LogReturn,), {"__module__": "__main__", "__qualname__": "Mine"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    with pytest.raises(UserError, match=r"but got .*__main__.*; move the class to the top of a module"):
        TradingConfig(reward=mine if as_class else "__main__:Mine")


def test_a_users_own_reward_is_imported(monkeypatch, tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        "from ml_pipeline.trading.envs.rewards import Reward\n"
        "class Gain(Reward):\n    def step(self, ops, state, before, after):\n        return after - before, state\n"
        "class Idle(Reward):\n    pass\n"
        "three = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_allclose(rewards_of("my_rewards:Gain", scale=2.0), 2 * np.diff(EQUITY))
    assert isinstance(make_reward("log_return"), LogReturn)
    with pytest.raises(UserError, match="my_rewards:three is not a class derived from"):
        make_reward("my_rewards:three")
    with pytest.raises(UserError, match="my_rewards:Idle has no step"):
        make_reward("my_rewards:Idle")
    with pytest.raises(UserError, match=r'my_rewards:Gone cannot be imported: my_rewards has no "Gone"\.$'):
        make_reward("my_rewards:Gone")


@pytest.mark.parametrize(
    ("name", "scale", "sentence"),
    [
        ("log_retrun", 1.0, 'no reward "log_retrun". Did you mean "log_return"'),
        ("nowhere:X", 1.0, 'There is no module "nowhere": run in the folder of nowhere.py'),
        ("log_return", 0.0, "reward_scale must be above 0 and finite"),
        ("log_return", math.nan, "reward_scale must be above 0 and finite"),
    ],
)
def test_rewards_that_cannot_be_had(name, scale, sentence):
    with pytest.raises(UserError, match=sentence):
        make_reward(name, scale)


def test_profit_and_return_within_bounds_by_hand():
    profit = make_reward("fast_profit_reward", kwargs={"reward_scaling": 20.0})
    assert profit.step(PLAIN_OPS, profit.begin(PLAIN_OPS, 100.0), 100.0, 110.0)[0] == pytest.approx(math.tanh(0.5))
    np.testing.assert_allclose(rewards_of("simple_momentum_reward", [100.0, 100.5]), [math.tanh(0.5)])
    assert make_reward("fast_profit_reward").step(PLAIN_OPS, (), 1e5, 1e5 - 10_000.0)[0] == pytest.approx(-math.tanh(1))


def test_a_risk_free_rate_is_per_year():
    reward = make_reward("sharpe_ratio", kwargs={"risk_free_rate": 0.5}, periods_per_year=10.0)
    state, total = reward.begin(PLAIN_OPS, EQUITY[0]), 0.0
    for before, after in pairwise(EQUITY):
        value, state = reward.step(PLAIN_OPS, state, before, after)
        total += value
    assert total == pytest.approx((RETURNS - 0.05).mean() / RETURNS.std())


@pytest.mark.parametrize(
    ("name", "kwargs", "sentence"),
    [
        ("sharpe_ratio", {"risk_free": 0.1}, 'no argument "risk_free". Did you mean "risk_free_rate"'),
        (
            "log_return",
            {"risk_free_rate": 0.1},
            'log_return has no argument "risk_free_rate". It takes none.',
        ),
        ("fast_profit_reward", {"reward_scaling": 0}, "reward_scaling must be above 0 and finite"),
        ("sharpe_ratio", {"risk_free_rate": "high"}, "risk_free_rate must be a number"),
    ],
)
def test_arguments_that_a_reward_does_not_take(name, kwargs, sentence):
    with pytest.raises(UserError, match=sentence):
        make_reward(name, kwargs=kwargs)
