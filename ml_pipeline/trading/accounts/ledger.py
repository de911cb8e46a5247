"""The ledger of a run, with one row per bar. `LedgerRecorder` makes it as an account trades; `trades` reads it.

A ledger is a dict of columns, each (n,). Row 0 is the start, before any trade. The columns are `time`, `equity`,
`cash`, `costs_paid` (since the start), `interest_days` (days of interest charged at the close; only if it is charged by
calendar day), and for each symbol X:
- `close_X`: the close of the bar
- `position_X`: the quantity held after the bar
- `filled_X`: the signed quantity filled since the row before
- `fill_price_X`: its price before costs; if fills are at the close, this is the close of the row before
- `exited_X`, `exit_price_X`: quantity and price of exits within the bar, after `filled_X`; only if the rules have exits
- `money`: the equity in money; only if deposits or withdrawals make it differ, and `equity` is then time-weighted
- `half_spread_X`: half the quoted spread as a fraction of the price, which `costs_paid` includes; only with quotes
Prices are NaN until a symbol is listed. The columns add up:

    cash[k] = cash[k-1] - sum_X filled_X[k] * fill_price_X[k] - sum_X exited_X[k] * exit_price_X[k]
        - (costs_paid[k] - costs_paid[k-1])
    equity[k] = cash[k] + sum_X position_X[k] * close_X[k]
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.data import FloatArray

Ledger = dict[str, NDArray[Any]]


def symbols_of(ledger: Ledger) -> tuple[str, ...]:
    """Names of the symbols, in the order of their columns."""
    return tuple(name.removeprefix("position_") for name in ledger if name.startswith("position_"))


def per_symbol(ledger: Ledger, kind: str) -> FloatArray:
    """The columns of a kind, such as "close", in the order of the symbols: (n, A).

    NaN and missing columns become 0.
    """
    symbols = symbols_of(ledger)
    none = np.zeros(len(ledger[f"position_{symbols[0]}"]))
    return np.column_stack([np.nan_to_num(ledger.get(f"{kind}_{symbol}", none)) for symbol in symbols])


def fills_of(ledger: Ledger) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """(signed quantities, prices), each (n, A), of the orders, and then of exits within the bars."""
    kinds = (("filled", "fill_price"), ("exited", "exit_price"))
    return tuple((per_symbol(ledger, quantity), per_symbol(ledger, price)) for quantity, price in kinds)


def equity_in_money(ledger: Ledger) -> FloatArray:
    """The equity in money, (n,), if `equity` is time-weighted as well."""
    return np.asarray(ledger.get("money", ledger["equity"]))


def traded_values(ledger: Ledger) -> FloatArray:
    """Absolute value traded in each row and symbol, (n, A)."""
    (filled, prices), (exited, exit_prices) = fills_of(ledger)
    return np.abs(filled) * prices + np.abs(exited) * exit_prices


_PER_SYMBOL = ("close", "position", "filled", "fill_price")
_EXITS = ("exited", "exit_price")
_PRICES = ("close", "fill_price", "exit_price")


class LedgerRow(NamedTuple):
    """An account at the close of one bar; each sequence holds one number per symbol.

    costs: money paid since the row before. filled: signed quantities filled since the row before, at `fill_prices`.
    A close or fill price of 0 or NaN belongs to a symbol that is not listed yet.
    half_spreads: None if the market has no quotes. exited, exit_prices: exits within the bar, after `filled`; None for
    an account that does not trade within bars. interest_days: days of interest charged; None if rates are per bar.
    """

    time: np.datetime64
    equity: float
    cash: float
    costs: float
    closes: Sequence[float]
    positions: Sequence[float]
    filled: Sequence[float]
    fill_prices: Sequence[float]
    half_spreads: Sequence[float] | None = None
    exited: Sequence[float] | None = None
    exit_prices: Sequence[float] | None = None
    interest_days: float | None = None


class LedgerRecorder:
    """Collects the rows of a ledger. It copies its inputs, and returns copies.

    The ledger is its only state: `LedgerRecorder.from_ledger` continues one with the same bits.

    symbols: names of the assets. quotes: whether rows have half-spreads. exits: whether they have exits within the bar.
    by_day: whether they have days of interest. costs_paid: the costs of all rows.

    >>> recorder = LedgerRecorder(["BTC"])
    >>> recorder.append(LedgerRow(np.datetime64("2024-01-01"), 100.0, 100.0, 0.0, [10.0], [0.0], [0.0], [10.0]))
    >>> recorder.append(LedgerRow(np.datetime64("2024-01-02"), 103.0, 49.0, 1.0, [10.8], [5.0], [5.0], [10.0]))
    >>> recorder.costs_paid, recorder.ledger()["filled_BTC"].tolist()
    (1.0, [0.0, 5.0])
    """

    def __init__(
        self, symbols: Sequence[str], *, quotes: bool = False, exits: bool = False, by_day: bool = False
    ) -> None:
        self.symbols = tuple(symbols)
        self.quotes, self.exits, self.by_day = quotes, exits, by_day
        self.costs_paid = 0.0
        self._kinds = (*_PER_SYMBOL, *(_EXITS if exits else ()), *(("half_spread",) if quotes else ()))
        per_symbol = [f"{kind}_{symbol}" for kind in self._kinds for symbol in self.symbols]
        self._of_account = ["equity", "cash", "costs_paid", *(["interest_days"] if by_day else [])]
        self._columns = [*self._of_account, *per_symbol]
        self._times: list[np.datetime64] = []
        self._rows: list[tuple[float, ...]] = []  # numbers in the order of `_columns`

    @classmethod
    def from_ledger(cls, ledger: Ledger) -> "LedgerRecorder":
        """A recorder that already has the rows of `ledger`. Raises UserError if a column is missing."""
        symbols = symbols_of(ledger)
        quotes, exits = (f"{kind}_{symbols[0]}" in ledger if symbols else False for kind in ("half_spread", "exited"))
        recorder = cls(symbols, quotes=quotes, exits=exits, by_day="interest_days" in ledger)
        columns = recorder._columns
        if missing := [name for name in ("time", *columns) if name not in ledger]:
            raise UserError(f"This is not a ledger: column {missing[0]} is missing; pass one that LedgerRecorder made.")
        recorder._times = list(ledger["time"])
        recorder._rows = list(zip(*(ledger[name].tolist() for name in columns), strict=True))
        recorder.costs_paid = recorder._rows[-1][columns.index("costs_paid")] if recorder._rows else 0.0
        return recorder

    def append(self, row: LedgerRow) -> None:
        """Add the next bar. Raises UserError if it is not later than the last one."""
        if self._times and not row.time > self._times[-1]:
            raise UserError(
                f"A ledger's times increase, but {row.time} does not come after {self._times[-1]}; sort the rows."
            )
        costs_paid = self.costs_paid + row.costs
        more = (each for each in (row.exited, row.exit_prices, row.half_spreads) if each is not None)
        per_symbol = (*row.closes, *row.positions, *row.filled, *row.fill_prices, *chain.from_iterable(more))
        days = () if row.interest_days is None else (row.interest_days,)
        numbers = (row.equity, row.cash, costs_paid, *days, *per_symbol)
        assert len(numbers) == len(self._columns), "one number per symbol, and half-spreads if there are quotes"
        self._times.append(row.time)
        self._rows.append(numbers)
        self.costs_paid = costs_paid

    def ledger(self) -> Ledger:
        """The table of all rows so far, in the order and with the types that `ledger` describes."""
        table = np.array(self._rows, dtype=np.float64).reshape(-1, len(self._columns))
        columns = dict(zip(self._columns, table.T, strict=True))
        ledger: Ledger = {"time": np.array(self._times, dtype="datetime64[ns]")}
        ledger |= {name: columns[name] for name in self._of_account}
        for symbol in self.symbols:
            for kind in self._kinds:
                values = columns[f"{kind}_{symbol}"]
                ledger[f"{kind}_{symbol}"] = np.where(values > 0, values, np.nan) if kind in _PRICES else values
        return ledger
