"""The ledger of a run, with one row per bar. `LedgerRecorder` writes it; `trades` and `costs` read it.

A ledger is a dict of columns, each (n,). Row 0 is the start, before any trade. The columns are `time`, `equity`,
`cash`, `costs_paid` (since the start), `interest_days` (for which interest was charged at the close; only where it is
charged by calendar day), and for each symbol X:
- `close_X`: the close of the bar
- `position_X`: the quantity held after the bar
- `filled_X`: the signed quantity filled since the row before
- `fill_price_X`: its price before costs; if fills are at the close, this is the close of the row before
- `exited_X`, `exit_price_X`: the same of what was closed within the bar, after `filled_X`; only for accounts that
  trade within bars
- `half_spread_X`: half the quoted spread as a fraction of the price, which `costs_paid` includes; only with quotes
Prices are NaN until a symbol is listed. The columns add up:

    cash[k] = cash[k-1] - sum_X filled_X[k] * fill_price_X[k] - sum_X exited_X[k] * exit_price_X[k]
        - (costs_paid[k] - costs_paid[k-1])
    equity[k] = cash[k] + sum_X position_X[k] * close_X[k]
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

Ledger = dict[str, NDArray[Any]]


def symbols_of(ledger: Ledger) -> tuple[str, ...]:
    """Names of the symbols, in the order of their columns."""
    return tuple(name.removeprefix("position_") for name in ledger if name.startswith("position_"))


def per_symbol(ledger: Ledger, kind: str) -> FloatArray:
    """The columns of a kind, such as "close", in the order of the symbols: (n, A).

    It has 0 for NaN, and where the ledger has no such column.
    """
    symbols = symbols_of(ledger)
    none = np.zeros(len(ledger[f"position_{symbols[0]}"]))
    return np.column_stack([np.nan_to_num(ledger.get(f"{kind}_{symbol}", none)) for symbol in symbols])


def fills_of(ledger: Ledger) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """(signed quantities, prices), each (n, A), of the orders, and then of what was closed within the bars."""
    kinds = (("filled", "fill_price"), ("exited", "exit_price"))
    return tuple((per_symbol(ledger, quantity), per_symbol(ledger, price)) for quantity, price in kinds)


def traded_values(ledger: Ledger) -> FloatArray:
    """Absolute value traded in each row and symbol, (n, A)."""
    (filled, prices), (exited, exit_prices) = fills_of(ledger)
    return np.abs(filled) * prices + np.abs(exited) * exit_prices
