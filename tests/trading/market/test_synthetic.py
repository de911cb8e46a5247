import numpy as np
import pytest

from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask


def test_is_seeded():
    one, same, other = synthetic_market(3, 100), synthetic_market(3, 100), synthetic_market(4, 100)
    np.testing.assert_array_equal(one.close, same.close)
    assert not np.array_equal(one.close, other.close)


def test_looks_like_daily_bars_of_stocks():
    market = synthetic_market(n_symbols=3)
    assert market.symbols == ("SYNTH1", "SYNTH2", "SYNTH3")
    assert market.periods_per_year == 252
    assert market.notices == ()
    assert market.tradable.all()
    assert np.all(market.low <= np.minimum(market.open, market.close))
    assert np.all(market.high >= np.maximum(market.open, market.close))
    returns = np.diff(np.log(market.close), axis=0)
    assert np.all(np.abs(returns.std(axis=0) * np.sqrt(252) - 0.17) < 0.02)
    correlations = np.corrcoef(returns.T)[np.triu_indices(3, 1)]
    assert np.all((correlations > 0.2) & (correlations < 0.4))
    moves = np.abs(returns[:, 0])
    assert np.corrcoef(moves[1:], moves[:-1])[0, 1] > 0.05  # volatility clusters


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_trend_follower_earns_after_costs_what_neither_holding_nor_guessing_does(seed):
    """The planted signal shows in a default feature: its sign beats both, on bars the scaler has not seen."""
    config = TradingConfig()
    task = TradingTask(config, market=synthetic_market(seed))
    trend = config.features.index("ema_distance_20")
    figures = task.evaluate(lambda observation: 2 if observation[trend] > 0 else 0)
    assert figures["agent"]["sharpe"] > 1.5
    assert figures["agent"]["total_return"] > 3 * max(figures["buy_and_hold"]["total_return"], 1.0)
    assert figures["random"]["total_return"] < 0


def test_in_shuffled_returns_there_is_nothing_to_find():
    market = synthetic_market()
    returns = np.diff(np.log(market.close[:, 0]))
    shuffled = np.random.default_rng(0).permutation(returns - returns.mean())

    def earned_by_trend(log_returns):
        prices = np.exp(np.concatenate([[0.0], log_returns.cumsum()]))
        table = compute_features(market_from_arrays(["A"], market.times, prices), ["ema_distance_20"])
        return np.mean(np.sign(table.values[table.first_bar : -1, 0]) * log_returns[table.first_bar :])

    assert earned_by_trend(returns) > 0.0012  # a bar, of the 0.0025 that knowing the regime would earn
    assert abs(earned_by_trend(shuffled)) < 0.0003
