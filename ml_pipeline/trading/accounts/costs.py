"""What a run paid: the costs of a ledger by kind, bar and asset.

n rows, A assets. The costs of a row add up to the change of `costs_paid` in that row.
"""

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger, per_symbol
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.data import FloatArray

Costs = dict[str, FloatArray]
"""Money by kind, each (n, A): "fee", "fixed_fee", "slippage", "spread", "borrowing" and "other".

"other" is what the rules do not explain: rounding, or a ledger that was made under other rules.
"""

_HOLDING = ("borrowing",)


def costs_of(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> Costs:
    """The costs of each row, computed from its fills, its short positions and the rules.

    A row in which nothing was paid has no costs, as where positions are closed at a price at which they were valued.
    An account that cannot pay for what it borrowed pays what it has: its shorts share that in proportion to their fees.
    """
    filled, position, close = (per_symbol(ledger, kind) for kind in ("filled", "position", "close"))
    filled = np.where(_paid(ledger)[:, None] != 0, filled, 0.0)
    traded = np.abs(filled) * per_symbol(ledger, "fill_price")
    sell_fee_bps = rules.fee_bps if rules.sell_fee_bps is None else rules.sell_fee_bps
    costs = {
        "fee": traded * np.where(filled > 0, rules.fee_bps, sell_fee_bps) / 10_000,
        "fixed_fee": np.where(filled != 0, rules.fixed_fee, 0.0),
        "slippage": traded * rules.slippage_bps / 10_000,
        "spread": traded * per_symbol(ledger, "half_spread"),
    }
    left = _paid(ledger) - sum(cost.sum(axis=1) for cost in costs.values())
    due = np.maximum(-position * close, 0.0) * rules.terms(periods_per_year).borrow_rate
    total_due = due.sum(axis=1)
    part = np.divide(np.clip(left, 0.0, total_due), total_due, out=np.zeros_like(left), where=total_due > 0)
    costs["borrowing"] = due * part[:, None]
    costs["other"] = _shared_out(ledger, left - costs["borrowing"].sum(axis=1))
    return costs


def unexplained_costs(ledger: Ledger) -> Costs:
    """All costs as "other", for a ledger whose rules are not known.

    Those of a row are shared by its fills in proportion to their value; without a fill, by what is held.
    """
    return {"other": _shared_out(ledger, _paid(ledger))}


def trading_and_holding(ledger: Ledger, costs: Costs) -> tuple[FloatArray, FloatArray]:
    """Costs of the fills, and costs of holding what is held after them, each (n, A).

    "other" is a cost of the fill where there is one.
    """
    nothing = np.zeros(per_symbol(ledger, "filled").shape)
    other = costs.get("other", nothing)
    has_fill = per_symbol(ledger, "filled") != 0
    holding = sum((costs[kind] for kind in _HOLDING if kind in costs), nothing) + np.where(has_fill, 0.0, other)
    trading = sum((cost for kind, cost in costs.items() if kind not in {*_HOLDING, "other"}), nothing)
    return trading + np.where(has_fill, other, 0.0), holding


def _paid(ledger: Ledger) -> FloatArray:
    """The costs of each row, (n,)."""
    return np.diff(ledger["costs_paid"], prepend=0.0)


def _shared_out(ledger: Ledger, amounts: FloatArray) -> FloatArray:
    """Amounts of each row, (n,), by asset: in proportion to what is traded, else to what is held, else equally."""
    traded = np.abs(per_symbol(ledger, "filled")) * per_symbol(ledger, "fill_price")
    held = np.abs(per_symbol(ledger, "position")) * per_symbol(ledger, "close")
    by = np.where(traded.any(axis=1, keepdims=True), traded, held)
    by = np.where(by.any(axis=1, keepdims=True), by, 1.0)
    return np.asarray(by / by.sum(axis=1, keepdims=True) * amounts[:, None])
