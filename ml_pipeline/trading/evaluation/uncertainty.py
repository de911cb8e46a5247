"""How far chance alone moves a figure: standard errors, and intervals by resampling. Pure functions.

returns: n simple returns per period. A standard error is in the unit of its figure. What is undefined is NaN.

Sources: Lo 2002, "The Statistics of Sharpe Ratios", Financial Analysts Journal 58(4), whose estimator for
autocorrelated returns is the delta method over a long-run covariance; Newey and West 1987 and 1994 for that; Politis
and Romano 1994, "The Stationary Bootstrap", JASA 89(428).
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.evaluation.metrics import profit_factor, sharpe, sortino
from ml_pipeline.trading.market.data import FloatArray

LEVEL = 0.95
"""Of the intervals."""
# Fewer observations than this say too little for an interval.
_FEWEST = 10
# Resamples: more of a short series, so that the work stays below so many numbers.
_MOST_RESAMPLES, _FEWEST_RESAMPLES, _WORK = 1_000, 200, 20_000_000


class Interval(NamedTuple):
    """The bounds between which the figure lies in `LEVEL` of the resamples."""

    low: float
    high: float


def sharpe_standard_error(returns: FloatArray, periods_per_year: float) -> float:
    """Standard error of `metrics.sharpe`, for returns that may be autocorrelated, skewed and fat-tailed.

    For independent normal returns it is sqrt((1 + SR^2 / 2) / n) per period, as in Lo 2002, eq. 9.
    """
    if len(returns) < _FEWEST or np.isnan(sharpe(returns, periods_per_year)):
        return float("nan")
    z = (returns - returns.mean()) / returns.std()
    ratio = returns.mean() / returns.std()
    return _standard_error(z - ratio / 2 * (z**2 - 1), periods_per_year)


def sortino_standard_error(returns: FloatArray, periods_per_year: float) -> float:
    """Standard error of `metrics.sortino`, as that of the Sharpe ratio: the delta method, with the losses' square."""
    if len(returns) < _FEWEST or np.isnan(sortino(returns, periods_per_year)):
        return float("nan")
    losses = np.minimum(returns, 0.0) ** 2
    downside = np.sqrt(losses.mean())
    ratio = returns.mean() / downside
    return _standard_error(
        (returns - returns.mean()) / downside - ratio / 2 * (losses / downside**2 - 1), periods_per_year
    )


def proportion_standard_error(part: float, n: float) -> float:
    """Standard error of a proportion of n independent cases, such as trades: sqrt(p (1 - p) / n).

    NaN for fewer than 10 cases, and where all are alike.

    >>> proportion_standard_error(0.5, 100)
    0.05
    """
    return float(np.sqrt(part * (1 - part) / n)) if n >= _FEWEST and 0 < part < 1 else float("nan")


def proportion_interval(part: float, n: int) -> Interval:
    """The 95 % interval of a proportion of n independent cases, which also few cases, all alike, have.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22(158).

    >>> low, high = proportion_interval(1.0, 11)  # 11 / (11 + 1.96^2)
    >>> round(low, 3), round(high, 3)
    (0.741, 1.0)
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    centre, spread = part + z**2 / (2 * n), z * np.sqrt(part * (1 - part) / n + z**2 / (4 * n**2))
    return Interval(*(float((centre + sign * spread) / (1 + z**2 / n)) for sign in (-1, 1)))


def long_run_covariance(values: FloatArray) -> FloatArray:
    """n times the covariance of the mean of autocorrelated values (n,) or (n, k): (k, k), k 1 for one series.

    Newey and West's, with weights 1 - j / (L + 1) up to L = floor(4 (n / 100)^(2/9)) lags.
    """
    centred = np.asarray(values - values.mean(axis=0)).reshape(len(values), -1)
    n = len(centred)
    lags = int(4 * (n / 100) ** (2 / 9))
    total = centred.T @ centred / n
    for lag in range(1, min(lags, n - 1) + 1):
        at_lag = centred[lag:].T @ centred[:-lag] / n
        total = total + (1 - lag / (lags + 1)) * (at_lag + at_lag.T)
    return np.asarray(total)


def stationary_bootstrap(n: int, mean_block: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Indices of one resample of n observations: blocks of geometric length with this mean, around the end."""
    starts_block = generator.random(n) < 1 / mean_block
    starts_block[0] = True
    latest = np.maximum.accumulate(np.where(starts_block, np.arange(n), 0))
    return np.asarray((generator.integers(n, size=n)[latest] + np.arange(n) - latest) % n)


def bootstrap_interval(
    values: FloatArray, figure: Callable[[FloatArray], float], *, mean_block: float | None = None, seed: int = 0
) -> Interval:
    """The interval of `figure` over stationary bootstrap resamples of the values; NaN where it is undefined.

    mean_block: None: the cube root of n, the order at which the blocks of returns may grow; 1 resamples independent
    values. Resamples for which the figure is undefined are left out.
    """
    n = len(values)
    if n < _FEWEST:
        return Interval(float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    block = float(np.ceil(n ** (1 / 3))) if mean_block is None else mean_block
    resamples = min(_MOST_RESAMPLES, max(_FEWEST_RESAMPLES, _WORK // n))
    found = np.array([figure(values[stationary_bootstrap(n, block, generator)]) for _ in range(resamples)])
    found = found[~np.isnan(found)]
    if len(found) < resamples / 2:
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def profit_factor_interval(profits: FloatArray) -> Interval:
    """The interval of the profit factor over resamples of the trades, taken as independent."""
    return bootstrap_interval(profits, profit_factor, mean_block=1.0)


def _standard_error(influence: FloatArray, periods_per_year: float) -> float:
    variance = long_run_covariance(influence)[0, 0] / len(influence)
    return float(np.sqrt(variance * periods_per_year))
