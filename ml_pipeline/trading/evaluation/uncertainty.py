"""The effect of chance on figures: standard errors, and intervals by resampling. Pure functions.

returns: n simple returns per period. A standard error has the unit of its figure. Undefined results are NaN.

Sources: Lo 2002, "The Statistics of Sharpe Ratios", Financial Analysts Journal 58(4), whose estimator for
autocorrelated returns is the delta method over a long-run covariance; Newey and West 1987 and 1994 for that; Politis
and Romano 1994, "The Stationary Bootstrap", JASA 89(428).
"""

from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.evaluation.metrics import sharpe, sortino
from ml_pipeline.trading.market.data import FloatArray

LEVEL = 0.95
"""Coverage of the intervals."""
# Fewest observations for an interval.
_FEWEST = 10
# Limits of resampling: most and fewest resamples, most numbers in total, and most numbers at once. Short series get
# more resamples. Over 125 bars, an upper bound of 10.3 of a Calmar ratio varies by 0.1 (one deviation) between seeds;
# over 1,800 bars, one of 1.59 by 0.04. An interval takes 0.2 s on a core.
_MOST_RESAMPLES, _FEWEST_RESAMPLES, _WORK, _AT_ONCE = 20_000, 200, 4_000_000, 500_000


class Interval(NamedTuple):
    """Bounds that contain the figure in a fraction `LEVEL` of the resamples."""

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
    """Standard error of `metrics.sortino` by the delta method, as for the Sharpe ratio, with squared losses."""
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

    NaN for fewer than 10 cases, and if all are equal.

    >>> proportion_standard_error(0.5, 100)
    0.05
    """
    return float(np.sqrt(part * (1 - part) / n)) if n >= _FEWEST and 0 < part < 1 else float("nan")


def proportion_interval(part: float, n: int) -> Interval:
    """The 95 % interval of a proportion of n independent cases, also for few cases that are all equal.

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


def stationary_bootstrap(
    n: int, mean_block: float, generator: np.random.Generator, *, n_resamples: int
) -> NDArray[np.int64]:
    """Indices of resamples of n observations, (n_resamples, n): blocks of geometric length with this mean, which wrap
    around the end."""
    total = n_resamples * n
    starts = [np.arange(0, total, n)]  # geometric lengths have no memory, so blocks may be cut at the end of a resample
    reached = 0
    while mean_block > 1 and reached < total:
        ends = reached + np.cumsum(generator.geometric(1 / mean_block, size=int((total - reached) / mean_block) + 10))
        starts.append(ends[ends < total])
        reached = int(ends[-1])
    begun = np.unique(np.concatenate(starts)) if mean_block > 1 else np.arange(total)
    offsets = generator.integers(n, size=len(begun)) - begun
    indices = np.repeat(offsets, np.diff(begun, append=total)) + np.arange(total)
    return np.asarray((indices % n).reshape(n_resamples, n))


def bootstrap_interval(
    values: FloatArray, figures: Callable[[FloatArray], FloatArray], *, mean_block: float | None = None, seed: int = 0
) -> Interval:
    """The interval of a figure over stationary bootstrap resamples of the values; NaN if it is undefined.

    values: (n,) or (n, k). figures: a function of m resamples, (m, n) or (m, n, k) -> (m,).
    mean_block: None: the cube root of n, the usual order for returns; 1 resamples independent values. Resamples with an
    undefined figure are left out. The bounds are rounded as in `interval_of`.
    """
    n = len(values)
    if n < _FEWEST:
        return Interval(float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    block = float(np.ceil(n ** (1 / 3))) if mean_block is None else mean_block
    left = min(_MOST_RESAMPLES, max(_FEWEST_RESAMPLES, _WORK // n))
    found = []
    while left > 0:
        now = min(left, max(_AT_ONCE // n, 1))
        found.append(figures(values[stationary_bootstrap(n, block, generator, n_resamples=now)]))
        left -= now
    return interval_of(np.concatenate(found))


def interval_of(figures: FloatArray) -> Interval:
    """The interval that holds `LEVEL` of the figures of resamples; NaN if more than half of them are undefined.

    Each bound is rounded to two digits, or to a step of 1, 2 or 5 times a power of ten that is at least five times its
    sampling error, so that other resamples give the same digits.
    """
    known = figures[~np.isnan(figures)]
    if len(known) < max(len(figures) / 2, 1):
        return Interval(float("nan"), float("nan"))
    bounds = []
    for part in ((1 - LEVEL) / 2, (1 + LEVEL) / 2):
        by = np.sqrt(part * (1 - part) / len(known))  # the error of a quantile, as a part of the resamples
        below, at, above = np.quantile(known, np.clip([part - 2 * by, part, part + 2 * by], 0.0, 1.0))
        bounds.append(_rounded(float(at), least_step=5 * float(above - below) / 4))
    return Interval(*bounds)


def _rounded(value: float, *, least_step: float) -> float:
    if not np.isfinite(value) or value == 0:
        return value
    least_step = max(least_step, 10.0 ** (np.floor(np.log10(abs(value))) - 1))
    power = int(np.floor(np.log10(least_step)))
    factor = next(factor for factor in (1, 2, 5, 10) if factor * 10.0**power >= least_step)
    rounded = round(value / (factor * 10.0**power)) * factor * 10.0**power
    return float(round(rounded, max(-power, 0))) + 0.0  # no minus before a zero


def calmar_interval(returns: FloatArray, periods_per_year: float, *, seed: int = 0) -> Interval:
    """The interval of the Calmar ratio over resamples of blocks of the returns."""
    return bootstrap_interval(returns, partial(calmar_ratios, periods_per_year=periods_per_year), seed=seed)


def calmar_ratios(returns: FloatArray, periods_per_year: float) -> FloatArray:
    """`metrics.calmar` of each row of returns, (m, n): (m,), but also for less than a quarter of a year."""
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.cumsum(np.log1p(returns), axis=1)
        fall = (level - np.maximum(np.maximum.accumulate(level, axis=1), 0.0)).min(axis=1)
        growth = np.expm1(level[:, -1] * (periods_per_year / returns.shape[1]))
        return np.asarray(np.where(fall < 0, growth / -np.expm1(fall), np.nan))


def profit_factor_interval(profits: FloatArray) -> Interval:
    """The interval of the profit factor over resamples of the trades, which are assumed independent."""
    return bootstrap_interval(profits, profit_factors, mean_block=1.0)


def profit_factors(profits: FloatArray) -> FloatArray:
    """`metrics.profit_factor` of each row of profits, (m, n): (m,)."""
    won, lost = np.maximum(profits, 0.0).sum(axis=1), -np.minimum(profits, 0.0).sum(axis=1)
    return np.divide(won, lost, out=np.full(len(won), np.nan), where=lost > 0)


def _standard_error(influence: FloatArray, periods_per_year: float) -> float:
    variance = long_run_covariance(influence)[0, 0] / len(influence)
    return float(np.sqrt(variance * periods_per_year))
