"""Records an account bar by bar and gives its ledger: for environments, and for any other loop that trades.

`ledger` describes the table.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of

_PER_SYMBOL = ("close", "position", "filled", "fill_price", "half_spread")
_PRICES = ("close", "fill_price")


class LedgerRow(NamedTuple):
    """An account at the close of one bar; each sequence holds one number per symbol.

    costs: money paid since the row before. filled: signed quantities filled since the row before, at `fill_prices`.
    A close or fill price of 0 or NaN belongs to a symbol that is not listed yet.
    half_spreads: None where the market has no quotes.
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


class LedgerRecorder:
    """Collects the rows of a ledger. It copies what it is given, and its ledgers are copies.

    The ledger is all the state there is: `LedgerRecorder.from_ledger` continues one with the same bits.

    symbols: names of the assets. quotes: whether rows have half-spreads. costs_paid: the costs of all rows.

    >>> recorder = LedgerRecorder(["BTC"])
    >>> recorder.append(LedgerRow(np.datetime64("2024-01-01"), 100.0, 100.0, 0.0, [10.0], [0.0], [0.0], [10.0]))
    >>> recorder.append(LedgerRow(np.datetime64("2024-01-02"), 103.0, 49.0, 1.0, [10.8], [5.0], [5.0], [10.0]))
    >>> recorder.costs_paid, recorder.ledger()["filled_BTC"].tolist()
    (1.0, [0.0, 5.0])
    """

    def __init__(self, symbols: Sequence[str], *, quotes: bool = False) -> None:
        self.symbols = tuple(symbols)
        self.quotes = quotes
        self.costs_paid = 0.0
        self._kinds = _PER_SYMBOL if quotes else _PER_SYMBOL[:-1]
        per_symbol = [f"{kind}_{symbol}" for kind in self._kinds for symbol in self.symbols]
        self._columns = ["equity", "cash", "costs_paid", *per_symbol]
        self._times: list[np.datetime64] = []
        self._rows: list[tuple[float, ...]] = []  # numbers in the order of `_columns`

    @classmethod
    def from_ledger(cls, ledger: Ledger) -> "LedgerRecorder":
        """A recorder that already has the rows of `ledger`. Raises UserError where a column is missing."""
        symbols = symbols_of(ledger)
        recorder = cls(symbols, quotes=any(f"half_spread_{symbol}" in ledger for symbol in symbols))
        columns = recorder._columns
        if missing := [name for name in ("time", *columns) if name not in ledger]:
            raise UserError(f"This is no ledger: it has no column {missing[0]}.")
        recorder._times = list(ledger["time"])
        recorder._rows = list(zip(*(ledger[name].tolist() for name in columns), strict=True))
        recorder.costs_paid = recorder._rows[-1][columns.index("costs_paid")] if recorder._rows else 0.0
        return recorder

    def append(self, row: LedgerRow) -> None:
        """Add the next bar. Raises UserError where it is not after the last one."""
        if self._times and not row.time > self._times[-1]:
            raise UserError(f"A ledger's times increase, but {row.time} does not come after {self._times[-1]}.")
        costs_paid = self.costs_paid + row.costs
        spreads = () if row.half_spreads is None else row.half_spreads
        per_symbol = (*row.closes, *row.positions, *row.filled, *row.fill_prices, *spreads)
        numbers = (row.equity, row.cash, costs_paid, *per_symbol)
        assert len(numbers) == len(self._columns), "one number per symbol, and half-spreads where there are quotes"
        self._times.append(row.time)
        self._rows.append(numbers)
        self.costs_paid = costs_paid

    def ledger(self) -> Ledger:
        """The table of all rows so far, in the order and with the types that `ledger` describes."""
        table = np.array(self._rows, dtype=np.float64).reshape(-1, len(self._columns))
        columns = dict(zip(self._columns, table.T, strict=True))
        ledger: Ledger = {"time": np.array(self._times, dtype="datetime64[ns]")}
        ledger |= {name: columns[name] for name in ("equity", "cash", "costs_paid")}
        for symbol in self.symbols:
            for kind in self._kinds:
                values = columns[f"{kind}_{symbol}"]
                ledger[f"{kind}_{symbol}"] = np.where(values > 0, values, np.nan) if kind in _PRICES else values
        return ledger
