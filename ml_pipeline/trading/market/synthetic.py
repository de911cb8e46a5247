"""The built-in market: random prices with a planted signal that can be learned, and that pays more than it costs."""

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import MarketData, market_from_arrays

_REGIME_BARS = 60  # a regime lasts this long on average
_DRIFT = 0.0025  # a bar's expected log return: plus this in a rising regime, minus this in a falling one
_VOLATILITY = 0.01  # of a bar's log return: about 16 % a year on daily bars
_COMMON = 0.3  # correlation of the noise between symbols


def synthetic_market(seed: int = 0, n_bars: int = 12_000, n_symbols: int = 1) -> MarketData:
    """Daily bars of `n_symbols` assets on weekdays from 1960 on.

    The signal: each asset is in a rising or a falling regime, independently of the others. At each bar a regime ends
    with probability 1/60, which is not observed. The log return from close to close is +0.0025 or -0.0025 by regime,
    plus noise. Nothing else can be predicted. Rise and fall cancel over the years, so holding earns little, and random
    actions earn nothing. Returns of the last 10 to 40 bars reveal the regime, so every trend feature shows it
    (`ema_distance_20`, `macd`, `log_return_20`, `rsi_14`).

    The noise: volatility is 1 % per bar on average and clusters (its logarithm is autoregressive, 0.98, deviation
    0.25). Shocks have heavy tails (Student, 6 degrees of freedom) and a correlation of 0.3 between assets. A fifth of a
    bar's variance lies between the close and the next open. Volume grows with the size of a move, up or down.
    """
    generator = np.random.default_rng(seed)
    shape = (n_bars, n_symbols)
    regime_changes = (generator.random(shape) < 1 / _REGIME_BARS).cumsum(axis=0)
    rising = np.where((regime_changes + generator.integers(0, 2, n_symbols)) % 2 == 0, 1, -1)
    deviation = _VOLATILITY * np.exp(_clustering(generator, shape))
    overnight = np.sqrt(0.2) * deviation * _shocks(generator, shape)
    daytime = np.sqrt(0.8) * deviation * _shocks(generator, shape) + _DRIFT * rising

    log_close = np.cumsum(overnight + daytime, axis=0)
    log_open = log_close - daytime
    reach = deviation * np.abs(generator.standard_normal((2, *shape))) * 0.3
    log_high = np.maximum(log_open, log_close) + reach[0]
    log_low = np.minimum(log_open, log_close) - reach[1]
    activity = 1.0 + np.abs(overnight + daytime) / deviation
    volume = np.round(1e6 * activity * np.exp(0.3 * generator.standard_normal(shape)))

    first_weekday = np.busday_offset("1960-01-01", 0, roll="forward")
    return market_from_arrays(
        ["SYNTH"] if n_symbols == 1 else [f"SYNTH{i + 1}" for i in range(n_symbols)],
        np.busday_offset(first_weekday, np.arange(n_bars)),
        100.0 * np.exp(log_close),
        open=100.0 * np.exp(log_open),
        high=100.0 * np.exp(log_high),
        low=100.0 * np.exp(log_low),
        volume=volume,
        source="the built-in market",
    )


def _clustering(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Log volatility: an autoregression with stationary deviation 0.25, (T, A)."""
    persistence, deviation = 0.98, 0.25
    shocks = deviation * np.sqrt(1 - persistence**2) * generator.standard_normal(shape)
    level = np.zeros(shape)
    for t in range(1, shape[0]):
        level[t] = persistence * level[t - 1] + shocks[t]
    return level


def _shocks(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Heavy-tailed shocks of deviation 1, (T, A), correlated between assets."""
    own = generator.standard_t(6, shape)
    common = generator.standard_t(6, (shape[0], 1))
    mixed = own if shape[1] == 1 else np.sqrt(_COMMON) * common + np.sqrt(1 - _COMMON) * own
    return mixed / np.sqrt(6 / 4)  # a Student variable of 6 degrees has variance 6 / 4
