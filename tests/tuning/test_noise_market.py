"""A study on a market that nothing predicts, and one on a market with a signal: real policies, passes and accounts."""

import numpy as np
import pytest

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.trials.validation_returns import measure_validation_returns
from ml_pipeline.tuning.winner_statistics import JudgedTrial, judge


def random_walk(seed, n_bars=1_500):
    """Weekdays of a price that moves by 1 % a day, and whose moves nothing predicts."""
    generator = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(0.01 * generator.standard_normal(n_bars)))
    opened = close * np.exp(-0.003 * generator.standard_normal(n_bars))
    times = np.busday_offset(np.busday_offset("1990-01-01", 0, roll="forward"), np.arange(n_bars))
    bars = {"open": opened, "high": close * 1.03, "low": close * 0.97, "volume": np.full(n_bars, 1e6)}
    return market_from_arrays(["WALK"], times, close, **bars)


def trial_of(task, number, acts):
    """What a trial keeps: the best of its checkpoints by the task's own score."""
    scores = [task.score(act) for act in acts]
    best = int(np.argmax(scores))
    returns = measure_validation_returns(task, acts[best])
    return JudgedTrial(number, scores[best], None, returns, n_checkpoints=len(acts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_200_trials_on_a_market_of_noise_end_in_no_evidence(seed):
    config = TradingConfig(features=("log_return_1", "log_return_5"), window=4)  # at the usual fee
    task = TradingTask(config, market=random_walk(seed))
    env = task.evaluation_env("validation")
    policies = [
        Policy(env.observation_space, env.action_space, PPOConfig(hidden_sizes=(8,)), seed=i) for i in range(200)
    ]
    judged = judge([trial_of(task, i, [policy.act]) for i, policy in enumerate(policies)])
    assert (judged.n_trials, judged.n_with_returns) == (200, 200)
    assert judged.sharpe > 1  # what a trader would have been shown
    assert judged.dsr < 0.5
    assert judged.evidence == "no evidence"
    assert judged.sentences()[0].startswith("No evidence")


@pytest.mark.long
def test_the_best_checkpoints_of_noise_end_in_no_evidence():
    config = TradingConfig(features=("log_return_1", "log_return_5"), window=4)
    task = TradingTask(config, market=random_walk(0))
    (n_inputs,) = task.evaluation_env("validation").observation_space.shape

    def act(weights):
        return lambda observation: int(np.argmax(observation @ weights))

    draws = np.random.default_rng(0).standard_normal((200, 5, n_inputs, 3))
    judged = judge([trial_of(task, i, [act(weights) for weights in each]) for i, each in enumerate(draws)])
    assert judged.dsr < 0.5 < judged.dsr_of_trials  # which sees 200 trials, but 1,000 checkpoints were tried
    assert judged.evidence == "no evidence"


def test_followers_of_a_planted_trend_are_evidence():
    # The built-in market trends for 60 bars at a time: a position in the direction of the last 20 bars pays.
    config = TradingConfig(features=("log_return_20",), window=1)
    task = TradingTask(config, market=synthetic_market(n_bars=8_000))

    def follower(threshold):
        return lambda observation: 1 if abs(observation[0]) < threshold else int(observation[0] > 0) * 2

    thresholds = np.linspace(0, 2, 20)
    judged = judge([trial_of(task, i, [follower(each)]) for i, each in enumerate(thresholds)])
    assert judged.evidence == "evidence"
    assert judged.sharpe > 1
