"""Whatever the raw data hold, no NaN and no infinity reaches an observation: one sentence, or finite numbers."""

import functools
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import market_from_frame
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from tests.examples import COSTLY

N = 60
SYMBOLS = ("AAA", "BBB")
COLUMNS = ("open", "high", "low", "close", "bid", "ask", "volume", "feature_mine")
ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 5e-324, 1e-308, 1e-9, 1e9, 1e150, 1.7e308)
FEATURES = (
    *("log_return_1", "log_return_5", "volatility_5", "rsi_5", "ema_distance_5", "macd", "atr_5", "volume_zscore_5"),
    *("tradable", "time_of_day", "time_of_week", "feature_mine"),
)
# (column, asset, from row, so many rows, value) of cells that are overwritten.
CELLS = st.tuples(
    st.sampled_from(COLUMNS),
    st.integers(0, 1),
    st.integers(0, N - 1),
    st.sampled_from([1, 2, 20, N]),
    st.sampled_from(ODD) | st.floats(),
)


def _bars():
    """(T, 2) of each column: clean bars with quotes."""
    generator = np.random.default_rng(0)
    close = 100 * np.exp(generator.normal(0, 0.02, (N, 2)).cumsum(axis=0))
    bars = {"open": close * 1.001, "high": close * 1.01, "low": close * 0.99, "close": close}
    bars |= {"bid": close * 0.999, "ask": close * 1.001, "volume": generator.uniform(1, 9, (N, 2))}
    return bars | {"feature_mine": generator.normal(size=(N, 2))}


def _overwritten(cells):
    bars = {name: values.copy() for name, values in _bars().items()}
    for column, asset, row, n_rows, value in cells:
        bars[column][row : row + n_rows, asset] = value
    return bars


DAYS = np.datetime64("2024-01-01", "ns") + np.arange(N) * np.timedelta64(1, "D")


def _told_or_finite(make_market):
    """Make a market and walk through it; what it says instead is one sentence about a symbol and a remedy."""
    try:
        task = TradingTask(TradingConfig(features=FEATURES, window=2), market=make_market())
    except UserError as error:
        said = str(error)
        assert "\n" not in said
        assert any(symbol in said for symbol in SYMBOLS), said
        assert re.search(r"row \d|bar \d| at \d{4}-|too few|leave it out|no row", said), said
        assert ";" in said, said  # the remedy
        return said
    for split in ("train", "test"):
        _walk(StatefulTradingEnv(task.account.bars_of(split), task.account.rules, window=2))
    return None


def _walk(env):
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    over = False
    while not over:
        assert np.isfinite(observation).all()
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert np.isfinite(reward)
        over = terminated or truncated
    assert np.isfinite(observation).all()


@example(cells=[("feature_mine", 0, 10, 20, 1.7e308)])
@example(cells=[("feature_mine", 1, 30, 1, np.nan)])
@example(cells=[("close", 0, 0, 1, 5e-324)])
@given(cells=st.lists(CELLS, min_size=1, max_size=3))
def test_arrays(cells):
    bars = _overwritten(cells)
    with np.errstate(all="ignore"):
        spread = (bars["ask"] - bars["bid"]) / (2 * bars["close"])

    def make():
        return market_from_arrays(
            SYMBOLS, DAYS, bars["close"], open=bars["open"], high=bars["high"], low=bars["low"],
            volume=bars["volume"], half_spread=spread, columns={"feature_mine": bars["feature_mine"]},
        )  # fmt: skip

    _told_or_finite(make)


def _frame(bars, layout):
    assets = [pl.DataFrame({"time": DAYS, **{name: bars[name][:, a] for name in COLUMNS}}) for a in (0, 1)]
    if layout == "long":
        return pl.concat(
            [asset.with_columns(pl.lit(s).alias("symbol")) for asset, s in zip(assets, SYMBOLS, strict=True)]
        )
    wide = [asset.rename({name: f"{s}:{name}" for name in COLUMNS}) for asset, s in zip(assets, SYMBOLS, strict=True)]
    return wide[0].hstack(wide[1].drop("time"))


@given(
    cells=st.lists(CELLS, max_size=3),
    layout=st.sampled_from(["long", "wide"]),
    rows=st.sampled_from(["as they are", "reversed", "one twice", "two swapped", "a block twice"]),
    row=st.integers(0, N - 6),
)
def test_tables(cells, layout, rows, row):
    frame = _frame(_overwritten(cells), layout)
    order = np.arange(frame.height)
    if rows == "reversed":
        order = order[::-1]
    elif rows == "one twice":
        order = np.insert(order, row, row)
    elif rows == "a block twice":
        order = np.insert(order, row, order[row : row + 5])
    elif rows == "two swapped":
        order[[row, row + 5]] = order[[row + 5, row]]
    said = _told_or_finite(lambda: market_from_frame(frame[order], name="data"))
    if rows in {"one twice", "two swapped", "a block twice"}:
        assert said is not None


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e150, 1e300])
def test_prices_of_any_size(scale):
    bars = _bars()
    said = _told_or_finite(
        lambda: market_from_arrays(
            SYMBOLS, DAYS, bars["close"] * scale, volume=bars["volume"], columns={"feature_mine": bars["close"]}
        )
    )
    assert said is None


def _require_a_sentence(error):
    assert "\n" not in str(error)


MODES = ("discrete", "buy_hold_sell", "target_weights", "trade")
NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf, -1e308, 1e308, -1, 99, 2**62, 0.5]) | st.floats()


@given(mode=st.sampled_from(MODES), kind=st.sampled_from(["fast", "stateful"]), numbers=st.tuples(NUMBERS, NUMBERS))
def test_actions(mode, kind, numbers):
    """An action of anything is refused in a sentence and changes nothing, or it is clipped, and all stays finite."""
    env = _env(mode, kind)
    env.reset(seed=0)
    discrete = mode in {"discrete", "buy_hold_sell"}
    action = [int(n) if np.isfinite(n) else n for n in numbers] if discrete else np.array(numbers, dtype=float)
    try:
        observation, reward, *_ = env.step(action)
    except UserError as error:
        _require_a_sentence(error)
        assert discrete or not np.isfinite(action).all()  # what is too large is clipped
        observation, reward, *_ = env.step(env.action_space.sample())  # it goes on
    assert np.isfinite(observation).all()
    assert np.isfinite(reward)


@functools.cache
def _env(mode, kind):
    config = TradingConfig(features=FEATURES, action_mode=mode)
    bars = _bars()
    mine = {"feature_mine": bars["feature_mine"]}
    task = TradingTask(config, market=market_from_arrays(SYMBOLS, DAYS, bars["close"], columns=mine))
    if kind == "stateful":
        return task.evaluation_env("train")
    return FastTradingEnv(task.account.bars_of("train"), task.account.rules)


@settings(max_examples=COSTLY)
@given(mode=st.sampled_from(MODES), numbers=st.lists(NUMBERS, min_size=4, max_size=4))
def test_actions_of_a_batch(mode, numbers):
    market = _env(mode, "fast").market
    envs = BatchedTradingEnv(market, 2, TradingRules(mode), episode_length=20)
    envs.reset(seed=0)
    try:
        actions = np.array(numbers).astype(envs.action_space.dtype).reshape(envs.action_space.shape)
    except (OverflowError, ValueError, RuntimeWarning):
        return
    try:
        observations, rewards, *_ = envs.step(actions)
    except UserError as error:
        _require_a_sentence(error)
        return
    assert np.isfinite(observations).all()
    assert np.isfinite(rewards).all()
