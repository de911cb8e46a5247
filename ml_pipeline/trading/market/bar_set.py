"""The bars of one time step, a buffer that grows by them, and an iterator over the bars of a market."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.data import FloatArray, MarketData, market_from_arrays
from ml_pipeline.trading.market.timeframes import Calendar, Timing, infer_calendar
from ml_pipeline.trading.market.times import as_text


@dataclass(frozen=True, eq=False)
class BarSet:
    """One bar of each of A symbols, in a fixed order; prices are NaN if a symbol has no bar.

    time: as in the data, the open or the close, by the market's timing. closed_at: UTC, when the bars closed.
    open, high, low, close, volume: float64 (A,). fillable: bool (A,), whether an order can be filled in the bar: the
    symbol has one, and its prices are possible. half_spread: float64 (A,), half the quoted spread at the close as a
    fraction of the mid price; None without quotes.
    columns: the `feature_*` columns of the data by name, (A,).
    late: the bars arrived after the next bar had opened, so no order can be based on them.
    """

    time: np.datetime64
    closed_at: np.datetime64
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    fillable: NDArray[np.bool_]
    half_spread: FloatArray | None = None
    columns: Mapping[str, FloatArray] = field(default_factory=dict)
    late: bool = False

    @property
    def present(self) -> NDArray[np.bool_]:
        """bool (A,), whether the symbol has a bar."""
        return ~np.isnan(self.close)


def bid_and_ask(close: FloatArray, half_spread: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Quotes around closes, of the same shape. half_spread: as a fraction of the close."""
    return close * (1 - half_spread), close * (1 + half_spread)


_PRICES = ("open", "high", "low", "close")
# Initial capacity in bars; it doubles when full.
_FIRST_ROOM = 256


class MarketBuffer:
    """Stores bars as they arrive. Memory grows by doubling, so that the cost of a bar does not depend on earlier ones.

    symbols: A names, in the order of the bars. timing: of the bars. calendar: None infers it from the bars so far.
    """

    def __init__(
        self, symbols: Sequence[str], timing: Timing, calendar: Calendar | None = None, *, source: str = "the tape"
    ) -> None:
        if not symbols:
            raise UserError("a tape needs at least one symbol, but there is none.")
        self.symbols = tuple(symbols)
        self.timing = timing
        self._calendar = calendar
        self._source = source
        self._n_bars = 0
        self._times = np.empty(_FIRST_ROOM, dtype="datetime64[ns]")
        self._tables: dict[str, FloatArray] = {name: self._table() for name in (*_PRICES, "volume")}
        self._tradable = np.empty((_FIRST_ROOM, len(self.symbols)), dtype=np.bool_)
        self._outside = np.zeros_like(self._tradable)
        self._has_outside = False
        self._columns: dict[str, FloatArray] = {}
        self._half_spread: FloatArray | None = None
        self._last_close = np.full(len(self.symbols), np.nan)
        self._last_spread = np.full(len(self.symbols), np.nan)

    @property
    def n_bars(self) -> int:
        return self._n_bars

    @property
    def last_time(self) -> np.datetime64 | None:
        """The time of the latest bar; None before the first."""
        return self._times[self._n_bars - 1] if self._n_bars else None

    @property
    def last_close(self) -> FloatArray:
        """The latest close of each asset, (A,); NaN before its first."""
        return self._last_close

    def append(self, bars: BarSet) -> None:
        """Add the next bars; an asset without a bar keeps its last close.

        Raises UserError, and adds nothing, if a price is invalid or the time is not later than the last.
        """
        self._check(bars)
        t, present = self._n_bars, bars.present
        if t == len(self._times):
            self._grow()
        self._times[t] = bars.time
        self._tradable[t] = present
        self._outside[t] = outside = present & ~bars.fillable
        self._has_outside |= bool(outside.any())
        self._last_close = np.where(present, bars.close, self._last_close)
        for name in _PRICES:
            self._tables[name][t] = np.where(present, getattr(bars, name), self._last_close)
        self._tables["volume"][t] = np.where(present, bars.volume, 0.0)
        self._append_spread(t, bars.half_spread, present)
        self._append_columns(t, bars.columns)
        self._n_bars = t + 1

    def market(self) -> MarketData:
        """The market of all bars so far, as `market_from_arrays` makes it, but without notices and remarks.

        Its arrays are views, which later bars do not change. Raises UserError if there is no bar yet.
        """
        n = self._n_bars
        if not n:
            raise UserError("a market needs at least one bar, but there is none yet.")
        times = self._times[:n]
        tables: dict[str, Any] = {name: table[:n] for name, table in self._tables.items()}
        return MarketData(
            symbols=self.symbols,
            times=times,
            **tables,
            tradable=self._tradable[:n],
            calendar=self._calendar or infer_calendar(times),
            timing=self.timing,
            source=self._source,
            half_spread=None if self._half_spread is None else self._half_spread[:n],
            columns={name: table[:n] for name, table in self._columns.items()},
            outside=self._outside[:n] if self._has_outside else None,
        )

    def _append_spread(self, t: int, spread: FloatArray | None, present: NDArray[np.bool_]) -> None:
        if spread is not None:
            if self._half_spread is None:
                self._half_spread = self._table(0.0)
            # As in `market_from_arrays`, the first row counts until the first quote of an asset.
            known = present & ~np.isnan(spread) if t else np.ones_like(present)
            self._last_spread = np.where(known, spread, self._last_spread)
        if self._half_spread is not None:
            self._half_spread[t] = np.nan_to_num(self._last_spread, nan=0.0)

    def _append_columns(self, t: int, columns: Mapping[str, FloatArray]) -> None:
        for name in columns:  # in their order, which feature_* uses
            if name not in self._columns:
                self._columns[name] = self._table(np.nan)
        for name, table in self._columns.items():
            table[t] = columns.get(name, np.nan)

    def _check(self, bars: BarSet) -> None:
        last = self.last_time
        if last is not None and not bars.time > last:
            raise UserError(f"bars must be in order, but the bar at {as_text(bars.time)} follows {as_text(last)}.")
        if len(bars.close) != len(self.symbols):
            raise UserError(f"bars must have {len(self.symbols)} symbols, but got {len(bars.close)}.")
        if _possible(bars):
            return
        own = np.flatnonzero(bars.present)
        arrays = {name: getattr(bars, name)[own] for name in ("open", "high", "low", "close", "volume")}
        spread = None if bars.half_spread is None else bars.half_spread[None, own]
        prices = {name: values[None] for name, values in arrays.items()}
        market_from_arrays(
            [self.symbols[a] for a in own], [bars.time], **prices, half_spread=spread
        )  # raises the reason
        raise AssertionError("an impossible bar was accepted")

    def _table(self, value: float | None = None) -> FloatArray:
        shape = (len(self._times), len(self.symbols))
        return np.empty(shape) if value is None else np.full(shape, value)

    def _grow(self) -> None:
        self._times = _doubled(self._times)
        self._tradable, self._outside = _doubled(self._tradable), _doubled(self._outside)
        self._tables = {name: _doubled(table) for name, table in self._tables.items()}
        self._columns = {name: _doubled(table) for name, table in self._columns.items()}
        if self._half_spread is not None:
            self._half_spread = _doubled(self._half_spread)


def bar_sets_of(market: MarketData) -> Iterator[BarSet]:
    """The bars of a market, in order; a `MarketBuffer` filled with them has the same market."""
    closed_at = market.timing.closes(market.times)
    fillable = market.fillable
    for t in range(market.n_bars):
        present = market.tradable[t]
        prices = {name: getattr(market, name)[t] for name in _PRICES}
        if not present.all():
            prices = {name: np.where(present, values, np.nan) for name, values in prices.items()}
        yield BarSet(
            time=market.times[t],
            closed_at=closed_at[t],
            **prices,
            volume=market.volume[t],
            fillable=fillable[t],
            half_spread=None if market.half_spread is None else market.half_spread[t],
            columns={name: values[t] for name, values in market.columns.items()},
        )


def _possible(bars: BarSet) -> bool:
    """Whether `market_from_arrays` would accept the bars."""
    present = bars.present
    if not present.any():
        return True
    least = np.minimum(np.minimum(bars.open, bars.low), bars.close)  # NaN if one is NaN
    most = np.maximum(np.maximum(bars.open, bars.high), bars.close)
    fine = (least > 0) & (most < np.inf) & (bars.low <= bars.high) & (bars.volume >= 0) & (bars.volume < np.inf)
    if bars.half_spread is not None:
        fine &= np.isnan(bars.half_spread) | ((bars.half_spread >= 0) & (bars.half_spread < 1))
    return bool((fine | ~present).all())


def _doubled(table: NDArray[Any]) -> NDArray[Any]:
    larger = np.empty((2 * len(table), *table.shape[1:]), dtype=table.dtype)
    larger[: len(table)] = table
    return larger
