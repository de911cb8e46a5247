"""Series and tables of an equity curve: rolling figures, drawdowns, months. Pure functions, arrays in, arrays out.

equity: (n + 1,), with the start first. returns: the n simple returns in between. times: those of the equity.
Rolling figures and drawdowns equal those of quantstats 0.0.86 where both are defined.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.evaluation.metrics import drawdown_fraction
from ml_pipeline.trading.market.data import FloatArray

# A variance below this part of that of all returns is the rounding error of a sum.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Drawdown:
    """A fall from a peak until the peak is reached again.

    peak, trough, end: rows of the equity; `end` is the row of the recovery, or None if there is none yet.
    depth: equity at the trough over that at the peak, minus 1. bars: from the peak to the end, or to the last row.
    """

    peak: int
    trough: int
    end: int | None
    depth: float
    bars: int


def rolling_volatility(returns: FloatArray, window: int, periods_per_year: float) -> FloatArray:
    """Volatility of the last `window` returns, annualized, (n,); NaN in the first `window` - 1 rows."""
    return np.asarray(np.sqrt(_rolling_moments(returns, window)[1] * periods_per_year))


def rolling_sharpe(returns: FloatArray, window: int, periods_per_year: float) -> FloatArray:
    """Sharpe ratio of the last `window` returns, annualized, (n,); NaN at first, and where they do not vary."""
    mean, variance = _rolling_moments(returns, window)
    deviation = np.sqrt(np.where(variance > 0, variance, np.nan))
    return np.asarray(mean / deviation * np.sqrt(periods_per_year))


def drawdowns(equity: FloatArray, *, most: int | None = None) -> list[Drawdown]:
    """The drawdowns of the curve, the deepest first; at most `most`."""
    depths = drawdown_fraction(equity)
    below = np.concatenate([[False], depths < 0, [False]])
    edges = np.flatnonzero(below[1:] != below[:-1])
    found = []
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):  # below its peak in first..end-1
        trough = first + int(np.argmin(depths[first:end]))
        recovered = end if end < len(equity) else None
        last = len(equity) - 1 if recovered is None else recovered
        found.append(Drawdown(first - 1, trough, recovered, float(depths[trough]), last - (first - 1)))
    return sorted(found, key=lambda drawdown: drawdown.depth)[:most]


def monthly_returns(times: NDArray[np.datetime64], equity: FloatArray) -> dict[int, dict[int, float]]:
    """Simple returns by year and month (1 to 12), each from the last equity of the month before."""
    months = times.astype("datetime64[M]")
    ends = np.flatnonzero(np.append(months[1:] != months[:-1], True))
    values = np.concatenate([equity[:1], equity[ends]])
    returns: dict[int, dict[int, float]] = {}
    for month, before, after in zip(months[ends].astype(int), values[:-1], values[1:], strict=True):
        if before > 0:
            returns.setdefault(1970 + int(month) // 12, {})[int(month) % 12 + 1] = float(max(after, 0.0) / before - 1)
    return returns


def _rolling_moments(returns: FloatArray, window: int) -> tuple[FloatArray, FloatArray]:
    """Mean and variance (ddof 1) of the last `window` returns, each (n,); NaN at first, 0 for rounding errors."""
    n = len(returns)
    mean, variance = np.full(n, np.nan), np.full(n, np.nan)
    if window < 2 or n < window:
        return mean, variance
    centre = returns.mean()
    sums = np.concatenate(
        [np.zeros((1, 2)), np.cumsum(np.stack([returns - centre, (returns - centre) ** 2], 1), axis=0)]
    )
    totals = sums[window:] - sums[:-window]
    mean[window - 1 :] = totals[:, 0] / window + centre
    spread = (totals[:, 1] - totals[:, 0] ** 2 / window) / (window - 1)
    variance[window - 1 :] = np.where(spread > _ROUNDING * max(float(returns.var()), 1e-300) * n, spread, 0.0)
    return mean, variance
