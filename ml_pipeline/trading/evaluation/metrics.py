"""Performance metrics, rolling figures, drawdowns and monthly returns of an equity curve. Pure functions.

An undefined metric is NaN.

equity: (n + 1,), including the start. returns: the n simple returns. periods_per_year: see `market.timeframes`.
Definitions equal those of empyrical-reloaded 0.7.1 and quantstats 0.0.86, which return infinities or magnified rounding
errors instead of NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.ledger import Ledger, equity_in_money, per_symbol, traded_values
from ml_pipeline.trading.market.data import FloatArray

# A deviation below this fraction of the largest return is a rounding error: the returns do not vary.
_ROUNDING = 1e-12
_SHORTEST_SPAN_YEARS = 0.25


def returns_of(equity: FloatArray) -> FloatArray:
    """Simple returns equity[t+1] / equity[t] - 1, (n,); negative equity counts as 0, and after 0 returns are 0."""
    worth = np.maximum(equity, 0.0)
    growth = np.divide(worth[1:], worth[:-1], out=np.ones(len(worth) - 1), where=worth[:-1] > 0)
    return np.asarray(growth - 1.0)


def time_weighted(equity: FloatArray, flows: FloatArray) -> FloatArray:
    """The first equity, compounded by returns that leave out money that came in or went out, (n,).

    flows: (n,), what came in (positive) or went out in each row; it counts as moved at the close of the row. Without
    flows, the bits of `equity`.

    >>> time_weighted(np.array([100.0, 160.0, 80.0]), np.array([0.0, 50.0, 0.0]))  # +10 %, then -50 %
    array([100., 110.,  55.])
    """
    if not flows[1:].any():
        return equity
    worth, before = np.maximum(equity[1:] - flows[1:], 0.0), equity[:-1]
    growth = np.divide(worth, before, out=np.ones(len(before)), where=before > 0)
    return np.asarray(equity[0] * np.concatenate([[1.0], np.cumprod(growth)]))


def total_return(equity: FloatArray) -> float:
    """equity_end / equity_start - 1.

    >>> round(total_return(np.array([100.0, 90.0, 120.0])), 12)
    0.2
    """
    return float(max(equity[-1], 0.0) / equity[0] - 1.0)


def cagr(equity: FloatArray, periods_per_year: float) -> float:
    """Compound annual growth rate: (equity_end / equity_start) ** (periods_per_year / n) - 1.

    NaN for less than a quarter of a year: compounded, 10 % in a week would be a meaningless 14,000 % per year.
    """
    n = len(equity) - 1
    if n < 1 or n < _SHORTEST_SPAN_YEARS * periods_per_year:
        return float("nan")
    return float((max(equity[-1], 0.0) / equity[0]) ** (periods_per_year / n) - 1.0)


def volatility(returns: FloatArray, periods_per_year: float) -> float:
    """std(returns, ddof 1) * sqrt(periods_per_year); NaN for fewer than 2 returns."""
    if len(returns) < 2:
        return float("nan")
    return float(np.std(returns, ddof=1) * np.sqrt(periods_per_year))


def sharpe(returns: FloatArray, periods_per_year: float, risk_free: float = 0.0) -> float:
    """mean(excess) / std(excess, ddof 1) * sqrt(periods_per_year), excess = returns - risk_free (per period).

    NaN if the returns do not vary.
    """
    excess = returns - risk_free
    if not _varies(excess):
        return float("nan")
    return float(np.mean(excess) / np.std(excess, ddof=1) * np.sqrt(periods_per_year))


def sortino(returns: FloatArray, periods_per_year: float) -> float:
    """mean(returns) / sqrt(mean(min(returns, 0) ** 2)) * sqrt(periods_per_year); NaN if no return is negative."""
    losses = np.minimum(returns, 0.0)
    if not losses.any():
        return float("nan")
    return float(np.mean(returns) / np.sqrt(np.mean(losses**2)) * np.sqrt(periods_per_year))


def max_drawdown(equity: FloatArray) -> float:
    """min(equity / running maximum - 1): 0 for a curve that never falls, -1 for one that loses everything.

    >>> round(max_drawdown(np.array([100.0, 120.0, 90.0, 130.0])), 12)
    -0.25
    """
    return float(drawdown_fraction(equity).min())


def drawdown_fraction(equity: FloatArray) -> FloatArray:
    """equity / running maximum - 1 at each bar, the start included: (n + 1,)."""
    worth = np.maximum(equity, 0.0)
    return np.asarray(worth / np.maximum.accumulate(worth) - 1.0)


def calmar(equity: FloatArray, periods_per_year: float) -> float:
    """CAGR / |largest drawdown|; NaN if CAGR is undefined or there is no drawdown."""
    drawdown = max_drawdown(equity)
    return cagr(equity, periods_per_year) / -drawdown if drawdown < 0 else float("nan")


def turnover(ledger: Ledger) -> float:
    """Sum of traded value, buys and sells, over the equity of the previous bar: buying and selling everything is 2."""
    return float((traded_values(ledger)[1:].sum(axis=1) / equity_in_money(ledger)[:-1]).sum())


def win_rate(profits: Sequence[float]) -> float:
    """The fraction of trades (not of bars) that made a profit after costs; NaN without a trade."""
    return sum(profit > 0 for profit in profits) / len(profits) if len(profits) else float("nan")


def profit_factor(profits: Sequence[float] | FloatArray) -> float:
    """Profit of winning trades (not bars) over the loss of losing trades, after costs; NaN if none lost.

    >>> profit_factor([3.0, -1.0, 2.0, -1.5])
    2.0
    """
    values = np.asarray(profits, dtype=np.float64)
    lost = -float(values[values < 0].sum())
    return float(values[values > 0].sum()) / lost if lost > 0 else float("nan")


def expectancy(profits: Sequence[float]) -> float:
    """The mean profit of a trade after costs, in money; NaN without a trade."""
    return float(np.mean(profits)) if len(profits) else float("nan")


def exposures(ledger: Ledger) -> tuple[FloatArray, FloatArray]:
    """Gross and net exposure, (n,): the value of positions, unsigned and signed, as a fraction of equity.

    NaN if there is no equity.
    """
    equity = np.where(equity_in_money(ledger) > 0, equity_in_money(ledger), np.nan)
    worth = per_symbol(ledger, "position") * per_symbol(ledger, "close")
    return np.asarray(np.abs(worth).sum(axis=1) / equity), np.asarray(worth.sum(axis=1) / equity)


def time_in_market(ledger: Ledger) -> float:
    """The fraction of bars after the start with a position at the close; NaN without bars."""
    held = (per_symbol(ledger, "position") != 0).any(axis=1)[1:]
    return float(held.mean()) if len(held) else float("nan")


def bar_hit_rate(ledger: Ledger) -> tuple[float, int]:
    """(fraction of bars with a gain, number of bars), over bars in which a position changed the equity."""
    held = (per_symbol(ledger, "position") != 0).any(axis=1)[:-1]
    changes = np.diff(ledger["equity"])[held]
    changes = changes[changes != 0]
    return (float((changes > 0).mean()) if len(changes) else float("nan")), len(changes)


def _varies(returns: FloatArray) -> bool:
    if len(returns) < 2:
        return False
    return bool(np.std(returns, ddof=1) > _ROUNDING * max(float(np.abs(returns).max()), _ROUNDING))


# A variance below this fraction of the overall variance is a rounding error of the sums.
_NO_SPREAD = 1e-13


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
    """Sharpe ratio of the last `window` returns, annualized, (n,); NaN at first, and if they do not vary."""
    mean, variance = _rolling_moments(returns, window)
    deviation = np.sqrt(np.where(variance > 0, variance, np.nan))
    return np.asarray(mean / deviation * np.sqrt(periods_per_year))


def drawdowns(equity: FloatArray, *, most: int | None = None) -> list[Drawdown]:
    """The drawdowns of the curve, deepest first, at most `most`."""
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
    """Simple returns by year and month (1 to 12), each from the last equity of the previous month."""
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
    variance[window - 1 :] = np.where(spread > _NO_SPREAD * max(float(returns.var()), 1e-300) * n, spread, 0.0)
    return mean, variance
