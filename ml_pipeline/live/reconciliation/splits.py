"""A session in the quantities and prices after all of its splits, so that a split is no difference by itself.

What remains of one are fractions of shares, and bars in which the account had its new quantity too late or too early.
A symbols; other adjustments are not changed.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import exact
from ml_pipeline.live.reconciliation.recorded import AdjustedAccount, RecordedSession
from ml_pipeline.trading.accounts.ledger import Ledger, per_symbol
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray

_QUANTITIES, _PRICES = ("position", "filled", "exited"), ("close", "fill_price", "exit_price")
# Numerators and denominators of ratios that companies use.
_LARGEST_PART = 100
# Smaller relative differences of quantities are due to rounding.
_ROUNDING = 1e-9


class Booked(NamedTuple):
    """A split that was booked into the account. number: of its bar. quantity: what came or went."""

    number: int
    symbol: str
    quantity: float


def unreported_splits(
    splits: Sequence[Booked], bars: Sequence[BarSet], symbols: Sequence[str], ledger: Ledger, first: int
) -> FloatArray:
    """Factors for prices before splits that the feed did not report, (bars, A). first: the number of the first row.

    The prices change at the bar, nearest to the booking, that opens at about the split's factor times the last close.
    Without such a bar, the prices were adjusted already, and nothing is rescaled.
    """
    factors = np.ones((len(bars), len(symbols)))
    positions = per_symbol(ledger, "position")
    for split in splits:
        a, row = list(symbols).index(split.symbol), split.number - first
        if row < 1 or (factor := _factor(float(positions[row - 1, a]), split.quantity)) is None:
            continue
        begins = [n for n in range(1, len(bars)) if _jumps(bars[n - 1], bars[n], a, factor)]
        if begins:
            factors[: min(begins, key=lambda n: abs(n - split.number)), a] *= factor
    return factors


def _factor(had: float, quantity: float) -> float | None:
    """The simplest factor of the price that fits, since fractions of shares are paid out; None: no split."""
    if had * (had + quantity) <= 0.0 or not quantity:
        return None
    parts = ((new, old) for new, old in itertools.product(range(1, _LARGEST_PART + 1), repeat=2) if new != old)
    fitting = [(new, old) for new, old in parts if abs(had * new / old - (had + quantity)) < 1.0]
    new, old = min(fitting, key=sum, default=(had + quantity, had))
    return old / new


def _jumps(before: BarSet, bars: BarSet, a: int, factor: float) -> bool:
    ratio = float(bars.open[a] / before.close[a])
    return ratio > 0.0 and abs(math.log(ratio / factor)) < abs(math.log(factor)) / 3


def after_splits(record: RecordedSession, units: FloatArray) -> RecordedSession:
    """The session in the quantities after all splits. `record.market` already has the prices.

    units: shares after all splits for one share at each bar of the market, (T, A).
    """
    symbols, times = record.market.symbols, record.market.times

    def unit(bar: np.datetime64, symbol: str) -> float:
        return float(units[np.searchsorted(times, bar), symbols.index(symbol)]) if symbol in symbols else 1.0

    of_rows = units[np.searchsorted(times, record.ledger["time"])]
    ledger = dict(record.ledger)
    for a, symbol in enumerate(symbols):
        for kinds, own in ((_QUANTITIES, of_rows[:, a]), (_PRICES, 1.0 / of_rows[:, a])):
            ledger |= {name: ledger[name] * own for kind in kinds if (name := f"{kind}_{symbol}") in ledger}
    fills = [
        fill._replace(quantity=exact(float(fill.quantity) * own), price=fill.price / own)
        for fill, bar in zip(record.fills, record.fill_bars, strict=True)
        for own in [unit(bar, fill.symbol)]
    ]
    named = [symbol for a, symbol in enumerate(symbols) if (units[:, a] != 1.0).any()]
    note = f"Quantities and prices of {', '.join(named)} before a split are shown as after it."
    return replace(
        record,
        ledger=ledger,
        orders=[each._replace(quantity=each.quantity * unit(each.bar, each.symbol)) for each in record.orders],
        fills=fills,
        adjustments=_adjustments(record, ledger, of_rows, unit),
        units=units,
        notes=(*record.notes, note),
    )


def _adjustments(record: RecordedSession, ledger: Ledger, units: FloatArray, unit: Any) -> list[AdjustedAccount]:
    """Other adjustments, and the quantities by which the account had more or less than its split gives."""
    found, symbols = list[AdjustedAccount](), record.market.symbols
    left: dict[tuple[int, str], float] = defaultdict(float)
    said: dict[tuple[int, str], str] = {}
    rows = {time: row for row, time in enumerate(record.ledger["time"].tolist())}
    for each in record.adjustments:
        quantity = each.quantity * unit(each.bar, each.symbol)
        row = rows.get(each.bar.astype("datetime64[ns]").astype(np.int64).item(), 0)
        is_split = each.kind == "split" and each.symbol in symbols and row > 0
        if is_split:
            left[row, each.symbol] += quantity
            said[row, each.symbol] = each.what
        # What is left of a split itself is its cash, for fractions of shares.
        found.append(each._replace(symbol="", quantity=0.0) if is_split else each._replace(quantity=quantity))
    held = per_symbol(record.ledger, "position")
    for row, a in zip(*np.nonzero(np.diff(units, axis=0)), strict=True):
        left[row + 1, symbols[a]] += float((units[row + 1, a] - units[row, a]) * held[row, a])
    for (row, symbol), quantity in left.items():
        around = np.abs(ledger[f"position_{symbol}"][row - 1 : row + 1]).max()
        if abs(quantity) > _ROUNDING * around:
            what = said.get((row, symbol), f"the account did not have the split of {symbol} yet")
            found.append(
                AdjustedAccount(record.ledger["time"][row], symbol, quantity, what, kind="split", in_proportion=True)
            )
    return found
