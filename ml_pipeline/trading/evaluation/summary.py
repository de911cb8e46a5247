"""All figures of a run by name, with the standard errors and intervals of its ratios."""

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger, equity_in_money, fills_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.evaluation import metrics, uncertainty

FEWEST_BARS, FEWEST_TRADES = 30, 10
"""With fewer bars or trades, luck decides ratios, and a report leaves them out."""
_RATIOS_OF_BARS = ("sharpe", "sortino", "calmar")
_RATIOS_OF_TRADES = ("win_rate", "profit_factor")


def figures_of(
    ledger: Ledger, periods_per_year: float, rules: TradingRules, *, holds: bool = False, bounds: bool = True
) -> dict[str, float]:
    """The figures of a report: `summarize` and, for `bounds`, `intervals`; NaN for ratios of too few observations.

    holds: the run buys and holds, so its bar ratios do not depend on the number of trades. For other runs, two fills
    count as a trade, because a portfolio may be rebalanced for years without closing a position.
    """
    terms = (periods_per_year, rules)
    figures = summarize(ledger, *terms) | (intervals(ledger, *terms) if bounds else {})
    n_traded = max(figures["n_trades"], sum(np.count_nonzero(filled) for filled, _ in fills_of(ledger)) // 2)
    few_bars = len(ledger["time"]) < FEWEST_BARS
    left_out = [
        *(_RATIOS_OF_BARS if few_bars or (n_traded < FEWEST_TRADES and not holds) else ()),
        *(_RATIOS_OF_TRADES if few_bars or figures["n_trades"] < FEWEST_TRADES else ()),
    ]
    ends = ("", "_se", "_low", "_high")
    return figures | {name: float("nan") for ratio in left_out for end in ends if (name := ratio + end) in figures}


def summarize(ledger: Ledger, periods_per_year: float, rules: TradingRules) -> dict[str, float]:
    """All metrics of a run under these rules, by name.

    `return` is ln(V_end / V_start), the sum of log-return rewards. `n_trades` includes trades still open at the end.
    NAME_se is the standard error of NAME.
    """
    equity = ledger["equity"]
    returns = metrics.returns_of(equity)
    profits = _profits(ledger, periods_per_year, rules)
    return {
        "total_return": metrics.total_return(equity),
        "cagr": metrics.cagr(equity, periods_per_year),
        "volatility": metrics.volatility(returns, periods_per_year),
        "sharpe": metrics.sharpe(returns, periods_per_year),
        "sharpe_se": uncertainty.sharpe_standard_error(returns, periods_per_year),
        "sortino": metrics.sortino(returns, periods_per_year),
        "sortino_se": uncertainty.sortino_standard_error(returns, periods_per_year),
        "calmar": metrics.calmar(equity, periods_per_year),
        "max_drawdown": metrics.max_drawdown(equity),
        "time_in_market": metrics.time_in_market(ledger),
        "turnover": metrics.turnover(ledger),
        "costs_paid": float(ledger["costs_paid"][-1]),
        "n_trades": float(len(profits)),
        "win_rate": (won := metrics.win_rate(profits)),
        "win_rate_se": uncertainty.proportion_standard_error(won, len(profits)),
        "profit_factor": metrics.profit_factor(profits),
        "expectancy": metrics.expectancy(profits),
        "return": float(np.log(equity[-1] / equity[0])) if equity[-1] > 0 else float("nan"),
    }


def intervals(ledger: Ledger, periods_per_year: float, rules: TradingRules) -> dict[str, float]:
    """Bounds of the ratios without a standard error, as NAME_low and NAME_high; see `uncertainty.LEVEL`."""
    equity = ledger["equity"]
    defined = np.isfinite(metrics.calmar(equity, periods_per_year))
    returns = metrics.returns_of(equity) if defined else np.empty(0)
    profits = np.array(_profits(ledger, periods_per_year, rules))
    calmar = uncertainty.calmar_interval(returns, periods_per_year)
    factor = uncertainty.profit_factor_interval(profits)
    return {
        "calmar_low": calmar.low,
        "calmar_high": calmar.high,
        "profit_factor_low": factor.low,
        "profit_factor_high": factor.high,
    }


def relative_profits(ledger: Ledger, periods_per_year: float, rules: TradingRules) -> list[float]:
    """The profit of each trade after costs, as a fraction of the equity in the row before its first fill."""
    trades = trades_of(ledger, costs_of(ledger, rules, periods_per_year))
    rows = np.searchsorted(ledger["time"], np.array([trade.entry_time for trade in trades], dtype="datetime64[ns]"))
    before = equity_in_money(ledger)[np.maximum(rows - 1, 0)]
    return [trade.profit / float(equity) for trade, equity in zip(trades, before, strict=True)]


def _profits(ledger: Ledger, periods_per_year: float, rules: TradingRules) -> list[float]:
    return [trade.profit for trade in trades_of(ledger, costs_of(ledger, rules, periods_per_year))]
