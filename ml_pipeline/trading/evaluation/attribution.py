"""Where a result comes from: profit by asset, costs by kind and asset, and the part that holding explains.

n rows, A assets.
"""

from dataclasses import dataclass

import numpy as np

from ml_pipeline.trading.accounts.costs import Costs
from ml_pipeline.trading.accounts.ledger import Ledger, fills_of, per_symbol, symbols_of
from ml_pipeline.trading.evaluation.uncertainty import long_run_covariance
from ml_pipeline.trading.market.data import FloatArray

_FEWEST = 10


@dataclass(frozen=True)
class AlphaBeta:
    """The line returns = alpha + beta * benchmark returns, with standard errors; alpha per year, as in quantstats.

    NaN for fewer than 10 returns, and where the benchmark does not vary.
    """

    alpha: float
    beta: float
    alpha_se: float
    beta_se: float


def gains_by_asset(ledger: Ledger) -> FloatArray:
    """What each asset gained in each row before costs, in money, (n, A): the change of its value less what was paid."""
    (filled, price), (exited, exit_price) = fills_of(ledger)
    value = per_symbol(ledger, "position") * per_symbol(ledger, "close")
    return np.asarray(np.diff(value, axis=0, prepend=0.0) - filled * price - exited * exit_price)


def profit_by_asset(ledger: Ledger, costs: Costs) -> dict[str, dict[str, float]]:
    """By symbol: "gain" before costs, each kind of "cost", and "profit", in money.

    The profits add up to the change of equity.
    """
    gains = gains_by_asset(ledger).sum(axis=0)
    of_kinds = {kind: cost.sum(axis=0) for kind, cost in costs.items()}
    table = {}
    for a, symbol in enumerate(symbols_of(ledger)):
        paid = {kind: float(cost[a]) for kind, cost in of_kinds.items()}
        table[symbol] = {"gain": float(gains[a]), **paid, "profit": float(gains[a]) - sum(paid.values())}
    return table


def profit_curves(ledger: Ledger, costs: Costs) -> FloatArray:
    """The profit of each asset since the start, after costs, (n, A); a row adds up to the change of equity."""
    paid = sum((cost for cost in costs.values()), np.zeros(gains_by_asset(ledger).shape))
    return np.cumsum(gains_by_asset(ledger) - paid, axis=0)


def costs_by_kind(costs: Costs) -> dict[str, float]:
    """The money paid for each kind of cost, over all rows and assets."""
    return {kind: float(cost.sum()) for kind, cost in costs.items()}


def alpha_beta(returns: FloatArray, benchmark: FloatArray, periods_per_year: float) -> AlphaBeta:
    """Regress returns on those of a benchmark, such as holding, over the same bars.

    The standard errors are those of Newey and West 1987, for residuals that are autocorrelated and vary in size.
    """
    n = len(returns)
    nan = float("nan")
    if n < _FEWEST or not benchmark.std() > 1e-12 * max(float(np.abs(benchmark).max()), 1e-300):
        return AlphaBeta(nan, nan, nan, nan)
    x = np.column_stack([np.ones(n), benchmark])
    inverse = np.linalg.inv(x.T @ x / n)
    line = inverse @ (x.T @ returns) / n
    scores = x * (returns - x @ line)[:, None]
    errors = np.sqrt(np.diag(inverse @ long_run_covariance(scores) @ inverse) / n)
    return AlphaBeta(
        alpha=float(line[0] * periods_per_year),
        beta=float(line[1]),
        alpha_se=float(errors[0] * periods_per_year),
        beta_se=float(errors[1]),
    )
