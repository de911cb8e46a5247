"""The equity and the holdings of a growing ledger.csv; only new rows are read."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.dashboard.files import open_file
from ml_pipeline.runtime.files import GrowingFile


class EquityTail:
    """The times, datetime64[ns] (n,), and the equity, float64 (n,), of all complete rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GrowingFile()
        self._forget()

    def _forget(self) -> None:
        self._columns: tuple[int, int] | None = None
        self._times: list[NDArray[np.datetime64]] = []
        self._equity: list[NDArray[np.float64]] = []
        self._books: dict[str, _Holding] = {}
        self._held: list[float] = []

    def read(self) -> tuple[NDArray[np.datetime64], NDArray[np.float64]]:
        """(times, equity); empty if there is no ledger. Unreadable rows are left out."""
        file = open_file(self._path)
        if file is None:
            self._file.forget()
            self._forget()
        else:
            with file:
                if not self._file.goes_on(file):
                    self._forget()
                for lines in self._file.chunks(file):
                    self._take(lines.decode("utf-8", errors="replace").splitlines())
        if not self._times:
            return np.empty(0, dtype="datetime64[ns]"), np.empty(0)
        self._times, self._equity = [np.concatenate(self._times)], [np.concatenate(self._equity)]
        return self._times[0], self._equity[0]

    def buy_and_hold(self) -> NDArray[np.float64]:
        """Equity (n,) of buying all symbols in equal parts at the close of the first bar, without costs, for the rows
        that `read` last returned. NaN if no price is known."""
        if not self._held:
            return np.empty(0)
        return np.array(self._held) * self._equity[0][0]

    def holdings(self) -> list[dict[str, Any]]:
        """Positions after the last row: {"symbol", "quantity": signed, "price": the last close, "value": money,
        "profit": money, compared with the mean entry price, without costs}, the largest value first; None if
        unknown."""
        held = [each.told() for each in self._books.values() if each.quantity]
        return sorted(held, key=lambda each: -abs(each["value"] or 0.0))

    def _take(self, lines: list[str]) -> None:
        if self._columns is None:
            names = lines[0].split(",")
            if not {"time", "equity"} <= {*names}:
                return
            self._columns = names.index("time"), names.index("equity")
            self._books = _holdings_of(names)
            lines = lines[1:]
        time, equity = self._columns
        times, values = [], []
        for line in lines:
            cells = line.split(",")
            try:
                stamp, value = np.datetime64(cells[time], "ns"), float(cells[equity])
            except (ValueError, IndexError):
                continue
            if not np.isnat(stamp):
                times.append(stamp)
                values.append(value)
                self._held.append(_mean([holding.take(cells) for holding in self._books.values()]))
        self._times.append(np.array(times, dtype="datetime64[ns]"))
        self._equity.append(np.array(values))


class _Holding:
    """The position in one symbol of the ledger, and its mean entry price. columns: indices of its four columns."""

    def __init__(self, symbol: str, columns: Sequence[int]) -> None:
        self._symbol = symbol
        self._columns = columns
        self._first = self._close = self._cost = math.nan
        self.quantity = 0.0

    def take(self, cells: Sequence[str]) -> float:
        """Process a row; return its close divided by the first close."""
        close, position, filled, price = (_number(cells, column) for column in self._columns)
        if not math.isnan(close):
            self._close = close
            self._first = close if math.isnan(self._first) else self._first
        before = position - filled
        if not filled:
            # Held before the first row, or changed without a fill, as by a split: the entry price is unknown.
            self._cost = self._cost if position == self.quantity else math.nan
        elif before * filled >= 0:
            self._cost = price if not before else (before * self._cost + filled * price) / position
        elif position * before < 0:  # from long to short, or back
            self._cost = price
        self.quantity = 0.0 if math.isnan(position) else position
        return self._close / self._first if self._first else math.nan

    def told(self) -> dict[str, Any]:
        value, profit = self.quantity * self._close, self.quantity * (self._close - self._cost)
        figures = {"quantity": self.quantity, "price": self._close, "value": value, "profit": profit}
        return {"symbol": self._symbol, **{name: _known(figure) for name, figure in figures.items()}}


def _holdings_of(names: Sequence[str]) -> dict[str, _Holding]:
    at = {name: i for i, name in enumerate(names)}
    found = {}
    for name in names:
        symbol = name.removeprefix("close_")
        columns = [at.get(f"{kind}_{symbol}") for kind in ("close", "position", "filled", "fill_price")]
        if symbol != name and None not in columns:
            found[symbol] = _Holding(symbol, [column for column in columns if column is not None])
    return found


def _number(cells: Sequence[str], column: int) -> float:
    try:
        value = float(cells[column])
    except (ValueError, IndexError):
        return math.nan
    return value if math.isfinite(value) else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
