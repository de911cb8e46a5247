"""Bars of one or several assets on one timeline, read by all of `trading` and changed by none.

T bars, A assets. This module reads no files (see `market.files`) and computes no features (see `features`).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.plausibility import OwnBars, outside_range, severe_problems
from ml_pipeline.trading.market.timeframes import Calendar, Timing, infer_calendar
from ml_pipeline.trading.market.times import as_text, usual_spacing

FloatArray = NDArray[np.float64]

_BAD_PRICE = "but a price must be positive and finite; drop the bar or fix it"
_BAD_VOLUME = "but a volume must be finite and not negative; fix it, or write 0"
# Symbols that a repr names.
_MOST_SHOWN = 5


@dataclass(frozen=True, eq=False)
class MarketData:
    """Prices and volumes. Make it with `market_from_arrays`, `files.load_market` or `synthetic.synthetic_market`.

    symbols: A names. times: datetime64[ns] (T,), strictly increasing, without time zone (UTC if the source has one).
    open, high, low, close, volume: float64 (T, A).
    tradable: bool (T, A), whether the asset has a bar at that time. If it has none, prices are NaN before its first
    bar, and its last close with volume 0 afterwards, so that a position can be valued. Prices are never filled
    backwards or from another asset.
    half_spread: float64 (T, A), half the quoted spread at the close over the mid price; None without quotes.
    columns: the `feature_*` columns of the data by name, float64 (T, A), NaN for a missing value.
    notices: one sentence for each change made to the data.
    remarks: one sentence for each problem that makes results wrong, symbol first; reports show them.
    source: the name of the data in messages.
    outside: bool (T, A), bars whose open or close lies outside their low..high and in which no order fills; None: none.
    timing: the usual bar length, whether times mark the open or the close, and the session.
    """

    symbols: tuple[str, ...]
    times: NDArray[np.datetime64]
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    tradable: NDArray[np.bool_]
    calendar: Calendar
    timing: Timing
    notices: tuple[str, ...] = ()
    source: str = "the market"
    half_spread: FloatArray | None = None
    columns: Mapping[str, FloatArray] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    outside: NDArray[np.bool_] | None = None

    shared_between_environments: ClassVar[bool] = True

    def __repr__(self) -> str:
        symbols = ", ".join(self.symbols[:_MOST_SHOWN]) + (", ..." if len(self.symbols) > _MOST_SHOWN else "")
        span = f" from {str(self.times[0])[:10]} to {str(self.times[-1])[:10]}" if self.n_bars else ""
        return f"{type(self).__name__}({self.source}: {symbols}; {counted(self.n_bars, 'bar')}{span})"

    @property
    def n_bars(self) -> int:
        return len(self.times)

    @property
    def fillable(self) -> NDArray[np.bool_]:
        """bool (T, A), whether an order can fill: the asset has a bar, and its prices are possible."""
        return self.tradable if self.outside is None else self.tradable & ~self.outside

    @property
    def session_end(self) -> NDArray[np.bool_]:
        """bool (T,), whether the bar is the last of its session, or of its day if there is no session.

        The last bar of a day is the one before the next day's first bar; exchanges announce early closes.
        """
        days = self.timing.clock.days(self.timing.opens(self.times))[0]
        return np.append(days[1:] != days[:-1], True)

    @property
    def periods_per_year(self) -> float:
        return self.calendar.periods_per_year

    def bars(self, start: int, stop: int) -> "MarketData":
        """The bars start..stop-1 as views; the calendar stays the same."""
        return self._indexed((slice(start, stop),), times=self.times[start:stop])

    def select(self, symbols: Sequence[str]) -> "MarketData":
        """The named assets, in this order. Raises UserError for an unknown name."""
        columns = [_column(symbol, self.symbols) for symbol in symbols]
        remarks = tuple(r for r in self.remarks if any(r.startswith(f"{symbol}: ") for symbol in symbols))
        return self._indexed((slice(None), columns), symbols=tuple(symbols), remarks=remarks)

    def own_bars(self, asset: int) -> OwnBars:
        """The bars of the asset with this index, without times at which it has none."""
        own = self.tradable[:, asset]
        spread = None if self.half_spread is None else self.half_spread[own, asset]
        outside = None if self.outside is None else self.outside[own, asset]
        return OwnBars(self.times[own], self.open[own, asset], self.close[own, asset], spread, outside)

    def _indexed(self, index: tuple[Any, ...], **changes: Any) -> "MarketData":
        names = ("open", "high", "low", "close", "volume", "tradable")
        arrays: dict[str, Any] = {name: getattr(self, name)[index] for name in names}
        for name in ("half_spread", "outside"):
            arrays[name] = None if getattr(self, name) is None else getattr(self, name)[index]
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, **arrays, columns=columns, **changes)


def market_from_arrays(
    symbols: Sequence[str],
    times: ArrayLike,
    close: ArrayLike,
    *,
    open: ArrayLike | None = None,
    high: ArrayLike | None = None,
    low: ArrayLike | None = None,
    volume: ArrayLike | None = None,
    half_spread: ArrayLike | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
    outside: ArrayLike | None = None,
    timing: Timing | None = None,
    notices: Sequence[str] = (),
    source: str = "the market",
    copy: bool = True,
) -> MarketData:
    """A market from arrays (T,) or (T, A). If a close is NaN, the asset has no bar at that time.

    half_spread: half of ask minus bid, as a fraction of the mid price; NaN carries the last value forward.
    columns: features of the data. outside: bool, bars in which no order fills; None: derived from high and low, if both
    are given. timing: None: bars open at `times` and last until the next one.
    copy: False keeps the arrays if possible; they must not change afterwards.
    Without open, high or low, the close is used instead, with a notice.
    Raises UserError for times out of order, for prices that are not positive and finite, and for a high below its low.
    """
    stamps = (np.array if copy else np.asarray)(times, dtype="datetime64[ns]")
    shape = (len(stamps), len(symbols))
    columns_of = partial(_columns, shape=shape, copy=copy)
    closes = columns_of(close, name="close")
    tradable = ~np.isnan(closes)
    all_notices = list(notices)
    given = {"open": open, "high": high, "low": low}
    if missing := [name for name, values in given.items() if values is None]:
        all_notices.append(f"there are no {' or '.join(missing)} prices; the close of the bar is used instead")
    prices = {"close": closes}
    prices |= {name: closes if v is None else columns_of(v, name=name) for name, v in given.items()}
    if volume is None:
        all_notices.append("there is no volume; it counts as 0")
    volumes = np.zeros_like(closes) if volume is None else columns_of(volume, name="volume")

    _check_times(stamps)
    refuse = partial(_refuse, symbols=symbols, times=stamps)
    for name, values in prices.items():
        bad = tradable & ~(np.isfinite(values) & (values > 0))
        refuse(bad, name, values, _BAD_PRICE)
    refuse(tradable & ~(np.isfinite(volumes) & (volumes >= 0)), "volume", volumes, _BAD_VOLUME)
    crossed = tradable & (prices["high"] < prices["low"])
    refuse(crossed, "high", prices["high"], "but the low is above it; fix or drop the bar")
    all_notices += _absences(symbols, stamps, tradable)
    last_close = _carried_forward(closes, tradable)
    everywhere = bool(tradable.all())
    filled = {name: v if everywhere else np.where(tradable, v, last_close) for name, v in prices.items()}
    spreads = None if half_spread is None else _half_spreads(half_spread, tradable, refuse)
    impossible = (
        _outside(outside, filled, tradable) if outside is not None or not {"high", "low"} & {*missing} else None
    )
    market = MarketData(
        symbols=tuple(symbols),
        times=stamps,
        volume=volumes if everywhere else np.where(tradable, volumes, 0.0),
        tradable=tradable,
        calendar=infer_calendar(stamps),
        notices=tuple(all_notices),
        source=source,
        half_spread=spreads,
        columns={name: columns_of(values, name=name) for name, values in (columns or {}).items()},
        outside=impossible,
        timing=timing or Timing(usual_spacing(stamps), "open"),
        open=filled["open"],
        high=filled["high"],
        low=filled["low"],
        close=filled["close"],
    )
    return replace(market, remarks=tuple(_remarks(market)))


def _outside(
    given: ArrayLike | None, prices: Mapping[str, FloatArray], tradable: NDArray[np.bool_]
) -> NDArray[np.bool_] | None:
    """The bars whose open or close lies outside their range, (T, A); None if there are none."""
    outside = outside_range(prices) if given is None else np.asarray(given, dtype=bool).reshape(tradable.shape)
    outside = outside & tradable
    return outside if outside.any() else None


def _remarks(market: MarketData) -> Iterator[str]:
    for a, symbol in enumerate(market.symbols):
        for problem, remedy in severe_problems(symbol, market.own_bars(a)):
            yield f"{symbol}: {problem}; {remedy}."


def _half_spreads(values: ArrayLike, tradable: NDArray[np.bool_], refuse: Callable[..., None]) -> FloatArray:
    spreads = _columns(values, name="half_spread", shape=tradable.shape, copy=False)
    known = tradable & ~np.isnan(spreads)
    bad = known & ~((spreads >= 0) & (spreads < 1))
    refuse(bad, "half_spread", spreads, "but it is a fraction of the price, from 0 to below 1; fix it")
    return np.nan_to_num(_carried_forward(spreads, known), nan=0.0)


def _columns(values: ArrayLike, *, name: str, shape: tuple[int, int], copy: bool) -> FloatArray:
    array = (np.array if copy else np.asarray)(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.shape != shape:
        raise UserError(f"{name} must have shape (bars, symbols) = {shape}, but got {array.shape}.")
    return array


def _check_times(times: NDArray[np.datetime64]) -> None:
    if len(times) == 0:
        raise UserError("a market needs at least one bar, but there is none.")
    late = np.flatnonzero(np.diff(times) <= np.timedelta64(0, "ns"))
    if late.size:
        row = int(late[0]) + 1
        raise UserError(
            f"times must increase, but bar {row} at {as_text(times[row])} follows {as_text(times[row - 1])}; sort them."
        )


def _refuse(
    bad: NDArray[np.bool_],
    name: str,
    values: FloatArray,
    problem: str,
    *,
    symbols: Sequence[str],
    times: NDArray[np.datetime64],
) -> None:
    """Raise UserError about the first bad bar, if there is one; bars are counted from 0."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        at = f"{name} of {symbols[column]} in bar {row} at {as_text(times[row])}"
        raise UserError(f"{at} is {values[row, column]:g}, {problem}.")


def _absences(symbols: Sequence[str], times: NDArray[np.datetime64], tradable: NDArray[np.bool_]) -> list[str]:
    """One sentence for each asset that lacks bars of others."""
    notices = []
    closed = "it cannot be traded then and is valued at its last close"
    for symbol, present in zip(symbols, tradable.T, strict=True):
        rows = np.flatnonzero(present)
        if rows.size == 0:
            raise UserError(f"{symbol} has no bars; leave it out.")
        first, last = int(rows[0]), int(rows[-1])
        if first > 0:
            notices.append(
                f"{symbol} begins at {as_text(times[first])}; it cannot be traded in the {counted(first, 'bar')} before"
            )
        if gaps := last - first + 1 - rows.size:
            notices.append(f"{symbol} has no bar at {gaps:,} of the {len(times):,} times; {closed}")
        if last < len(times) - 1:
            notices.append(f"{symbol} has no bar after {as_text(times[last])}; {closed}")
    return notices


def _carried_forward(values: FloatArray, known: NDArray[np.bool_]) -> FloatArray:
    """Each column's last known value, (T, A); NaN before its first."""
    if known.all():
        return values
    rows = np.where(known, np.arange(len(values))[:, None], -1)
    latest = np.maximum.accumulate(rows, axis=0)
    return np.take_along_axis(values, np.maximum(latest, 0), axis=0)


def _column(symbol: str, symbols: Sequence[str]) -> int:
    if symbol not in symbols:
        raise UserError(f'There is no symbol "{symbol}" in the market. {nearest(symbol, symbols)}')
    return tuple(symbols).index(symbol)


def market_fingerprint(market: MarketData) -> str:
    """A digest of all bars, quotes and columns, without the names of the market in messages.

    It is the same on every machine with the same byte order.
    """
    digest = hashlib.blake2b(digest_size=16)
    arrays: dict[str, Any] = {
        "times": market.times.astype("datetime64[ns]").view(np.int64),
        **{name: getattr(market, name) for name in ("open", "high", "low", "close", "volume", "tradable")},
        "half_spread": market.half_spread,
        "outside": market.outside,
        **{f"column {name}": market.columns[name] for name in sorted(market.columns)},
    }
    digest.update(repr((market.symbols, market.calendar, market.timing)).encode())
    for name, values in arrays.items():
        if values is not None:
            digest.update(f"{name} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
