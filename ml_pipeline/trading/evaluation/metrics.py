"""Performance metrics: pure functions of an equity curve or a ledger. An undefined metric is NaN.

equity: (n + 1,), with the start first. returns: the n simple returns in between. periods_per_year: see
`market.calendar`.
Definitions equal those of empyrical-reloaded 0.7.1 and quantstats 0.0.86, which give infinities or magnified rounding
errors where these give NaN.
"""

import numpy as np

from ml_pipeline.trading.accounts.costs import costs_of
from ml_pipeline.trading.accounts.ledger import Ledger, traded_values
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import trades_of
from ml_pipeline.trading.market.data import FloatArray

# A deviation below this fraction of the largest return is a rounding error: the returns do not vary.
_ROUNDING = 1e-12
_SHORTEST_SPAN_YEARS = 0.25


def summarize(ledger: Ledger, periods_per_year: float, rules: TradingRules) -> dict[str, float]:
    """Every metric of a run under these rules, by name.

    `return` is ln(V_end / V_start), the sum of log-return rewards. `n_trades` includes trades still open at the end.
    """
    equity = ledger["equity"]
    returns = returns_of(equity)
    trades = trades_of(ledger, costs_of(ledger, rules, periods_per_year))
    return {
        "total_return": total_return(equity),
        "cagr": cagr(equity, periods_per_year),
        "volatility": volatility(returns, periods_per_year),
        "sharpe": sharpe(returns, periods_per_year),
        "sortino": sortino(returns, periods_per_year),
        "calmar": calmar(equity, periods_per_year),
        "max_drawdown": max_drawdown(equity),
        "turnover": turnover(ledger),
        "costs_paid": float(ledger["costs_paid"][-1]),
        "n_trades": float(len(trades)),
        "win_rate": win_rate([trade.profit for trade in trades]),
        "return": float(np.log(equity[-1] / equity[0])) if equity[-1] > 0 else float("nan"),
    }


def returns_of(equity: FloatArray) -> FloatArray:
    """Simple returns equity[t+1] / equity[t] - 1, (n,); negative equity counts as 0."""
    worth = np.maximum(equity, 0.0)
    return np.asarray(worth[1:] / worth[:-1] - 1.0)


def total_return(equity: FloatArray) -> float:
    """equity_end / equity_start - 1.

    >>> round(total_return(np.array([100.0, 90.0, 120.0])), 12)
    0.2
    """
    return float(max(equity[-1], 0.0) / equity[0] - 1.0)


def cagr(equity: FloatArray, periods_per_year: float) -> float:
    """Compound annual growth rate: (equity_end / equity_start) ** (periods_per_year / n) - 1.

    NaN for less than a quarter of a year: compounding makes 10 % in a week 14,000 % per year, which means nothing.
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
    """Sum of traded value, buys and sells, each over the equity of the bar before: buying and selling all is 2."""
    return float((traded_values(ledger)[1:].sum(axis=1) / ledger["equity"][:-1]).sum())


def win_rate(profits: list[float]) -> float:
    """The fraction of trades (not of bars) that made a profit after costs; NaN without a trade."""
    return sum(profit > 0 for profit in profits) / len(profits) if profits else float("nan")


def _varies(returns: FloatArray) -> bool:
    if len(returns) < 2:
        return False
    return bool(np.std(returns, ddof=1) > _ROUNDING * max(float(np.abs(returns).max()), _ROUNDING))
