"""What a run paid: the costs of a ledger by kind, bar and asset.

n rows, A assets. The costs of a row add up to the change of `costs_paid` in that row.
"""

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger, fills_of, per_symbol, traded_values
from ml_pipeline.trading.accounts.orders import NUMPY_OPS, order_steps
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.data import FloatArray

Costs = dict[str, FloatArray]
"""Money by kind, each (n, A): "fee", "fixed_fee", "slippage", "spread", "borrowing", "financing" and "other".

"financing" is there if the rules charge it: the interest on borrowed money, shared by long positions by their value.
"other" is what the rules do not explain: rounding, or a ledger that was made under other rules.
"""

_STEPS = order_steps(NUMPY_OPS)
_HOLDING = ("borrowing", "financing")


def costs_of(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> Costs:
    """The costs of each row, computed from its fills, its short positions and the rules.

    A row in which nothing was paid has no costs, as where positions are closed at a price at which they were valued.
    An account that cannot pay for what it borrowed pays what it has: its shorts share that in proportion to their fees.
    """
    position, close = (per_symbol(ledger, kind) for kind in ("position", "close"))
    some_paid = _paid(ledger)[:, None] != 0
    traded, nothing = np.where(some_paid, traded_values(ledger), 0.0), np.zeros(position.shape)
    sell_fee_bps = rules.fee_bps if rules.sell_fee_bps is None else rules.sell_fee_bps
    costs = {
        "fee": nothing.copy(),
        "fixed_fee": nothing.copy(),
        "slippage": traded * rules.slippage_bps / 10_000,
        "spread": traded * per_symbol(ledger, "half_spread"),
    }
    for all_filled, price in fills_of(ledger):
        filled = np.where(some_paid, all_filled, 0.0)
        costs["fee"] += np.abs(filled) * price * np.where(filled > 0, rules.fee_bps, sell_fee_bps) / 10_000
        costs["fixed_fee"] += np.where(filled != 0, rules.fixed_fee, 0.0)
    left = _paid(ledger) - sum(cost.sum(axis=1) for cost in costs.values())
    terms, days = rules.terms(periods_per_year), ledger.get("interest_days", np.ones(len(left)))
    due = {"borrowing": _STEPS.borrowing_fee(position * close, (terms.borrow_rate * days)[:, None])}
    if rules.financing_bps_per_year is not None:
        owed = np.maximum(-(ledger["cash"] + left), 0.0)  # before the interest of the row
        due["financing"] = _shared_out(ledger, owed * terms.financing_rate * days, by=np.maximum(position * close, 0.0))
    total_due = np.sum([each.sum(axis=1) for each in due.values()], axis=0)
    part = np.divide(np.clip(left, 0.0, total_due), total_due, out=np.zeros_like(left), where=total_due > 0)
    costs |= {kind: each * part[:, None] for kind, each in due.items()}
    costs["other"] = _shared_out(ledger, left - sum(costs[kind].sum(axis=1) for kind in due))
    return costs


def unexplained_costs(ledger: Ledger) -> Costs:
    """All costs as "other", for a ledger whose rules are not known.

    Those of a row are shared by its fills in proportion to their value; without a fill, by what is held.
    """
    return {"other": _shared_out(ledger, _paid(ledger))}


def trading_and_holding(ledger: Ledger, costs: Costs) -> tuple[FloatArray, FloatArray]:
    """Costs of the fills, and costs of holding what is held after them, each (n, A).

    "other" is a cost of the fill where there is one, and so is the financing of what a fill closed.
    """
    nothing = np.zeros(per_symbol(ledger, "filled").shape)
    other = costs.get("other", nothing)
    has_fill = np.any([filled != 0 for filled, _ in fills_of(ledger)], axis=0)
    holding = sum((costs[kind] for kind in _HOLDING if kind in costs), nothing) + np.where(has_fill, 0.0, other)
    trading = sum((cost for kind, cost in costs.items() if kind not in {*_HOLDING, "other"}), nothing)
    trading = trading + np.where(has_fill, other, 0.0)
    closed = has_fill & (per_symbol(ledger, "position") == 0)
    return np.where(closed, trading + holding, trading), np.where(closed, 0.0, holding)


def _paid(ledger: Ledger) -> FloatArray:
    """The costs of each row, (n,)."""
    return np.diff(ledger["costs_paid"], prepend=0.0)


def _shared_out(ledger: Ledger, amounts: FloatArray, by: FloatArray | None = None) -> FloatArray:
    """Amounts of each row, (n,), by asset: in proportion to `by`, else to what is traded, else held, else equally."""
    traded = traded_values(ledger)
    held = np.abs(per_symbol(ledger, "position")) * per_symbol(ledger, "close")
    others = np.where(traded.any(axis=1, keepdims=True), traded, held)
    by = others if by is None else np.where(by.any(axis=1, keepdims=True), by, others)
    by = np.where(by.any(axis=1, keepdims=True), by, 1.0)
    return np.asarray(by / by.sum(axis=1, keepdims=True) * amounts[:, None])
