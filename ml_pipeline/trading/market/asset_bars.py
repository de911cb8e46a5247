"""Reads the bars of one asset from a table and checks every cell; messages name the row of an unusable one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.columns import FEATURE_PREFIX, Layout
from ml_pipeline.trading.market.data import BarTime, FloatArray, as_text
from ml_pipeline.trading.market.numbers import parse_numbers, why_unread
from ml_pipeline.trading.market.tables import Table
from ml_pipeline.trading.market.times import ReadTimes

_PRICES = ("open", "high", "low", "close")
# If high is below low in more than this fraction of the bars, their columns are probably swapped.
_SWAPPED = 0.5
# A step between bars beyond both of these is no pause in trading.
_JUMP = np.timedelta64(2 * 366, "D")
_JUMP_BARS = 20
# Parts of the names of volume columns in money.
_MONEY = ("usd", "eur", "gbp", "jpy", "dai", "quote", "money")

Cells = dict[str, FloatArray]
# Which rows of the asset are unusable, and a function that describes one of them.
Fault = tuple[NDArray[np.bool_], Callable[[int], str]]
Check = Callable[["Asset", Cells], Fault]


@dataclass(frozen=True, eq=False)
class Asset:
    """Where the bars of an asset are in a table: rows, and columns by meaning."""

    symbol: str
    table: Table
    layout: Layout
    fields: dict[str, str]
    rows: NDArray[np.int64]
    read_times: ReadTimes  # of every row of the table

    @property
    def times(self) -> NDArray[np.datetime64]:
        """Of every row of the table, in UTC."""
        return self.read_times.utc


@dataclass(frozen=True, eq=False)
class AssetBars:
    """The bars of one asset, oldest first.

    bar_time: whether times are when bars open or close, if the name of the time column tells. notices: sentences about
    changes to the data. days: the midnights of the exchange that `times` are in UTC, if they are any.
    """

    symbol: str
    times: NDArray[np.datetime64]
    fields: dict[str, FloatArray]
    bar_time: BarTime | None
    notices: list[str]
    days: NDArray[np.datetime64] | None = None


@dataclass
class Faults:
    """What to do about unusable rows.

    policy: "refuse" the first; "drop" them and collect sentences; "list" is as "drop", and also collects what cannot
    be mended by dropping rows. sentences: about the rows.
    """

    policy: Literal["refuse", "drop", "list"] = "refuse"
    sentences: list[str] = field(default_factory=list)

    def report(self, table: Table, rows: NDArray[np.int64], sentence: str, *, droppable: bool = True) -> None:
        """Report rows of the table, in order; the sentence is about the first. Raises UserError by `policy`."""
        message = f"{table.place(int(rows[0]))}: {sentence}"
        if self.policy == "refuse" or (self.policy == "drop" and not droppable):
            raise UserError(message)
        if len(rows) > 1:
            message += f" The same in {len(rows):,} rows in all: {table.numbers(rows.tolist())}."
        self.sentences.append(message)


def read_bars(asset: Asset, faults: Faults) -> AssetBars:
    """The bars of the asset, oldest first. Raises UserError for unusable rows, by `faults`, and if none is left."""
    asset, cells = _read_cells(asset, faults)
    # In a wide table, a row without any price means that this asset has no bar; elsewhere it is an error.
    if asset.layout.symbol is None and "" not in asset.layout.fields:
        prices = [cells[name] for name in _price_columns(cells)]
        asset, cells = _only(asset, cells, ~np.all(np.isnan(prices), axis=0))
    for check in _checks(cells):
        bad, sentence = check(asset, cells)
        if bad.any():
            faults.report(asset.table, asset.rows[bad], sentence(int(np.argmax(bad))))
            asset, cells = _only(asset, cells, ~bad)
    if not len(asset.rows):
        raise UserError(f"{asset.table.name}: no row of {asset.symbol} can be used; use other data.")
    notices = [*_about_units(asset), *_check_order(asset, faults)]
    fields = _fields(asset, cells, notices)
    times = asset.times[asset.rows]
    days = None if asset.read_times.days is None else asset.read_times.days[asset.rows]
    if (np.diff(times) < np.timedelta64(0, "ns")).any():
        order = np.argsort(times)
        times, days = times[order], None if days is None else days[order]
        fields = {name: values[order] for name, values in fields.items()}
        asset = replace(asset, rows=asset.rows[order])
    _check_jumps(asset, times, faults)
    return AssetBars(asset.symbol, times, fields, asset.layout.bar_time, notices, days)


def _read_cells(asset: Asset, faults: Faults) -> tuple[Asset, Cells]:
    """The numbers in the rows of the asset; NaN for an empty cell."""
    columns = {name: asset.table.frame[title].gather(asset.rows) for name, title in asset.fields.items()}
    cells: Cells = {}
    usable = np.full(len(asset.rows), True)
    for (name, column), (numbers, unread) in zip(columns.items(), parse_numbers([*columns.values()]), strict=True):
        cells[name] = numbers
        if unread.any():
            cell = column[int(np.argmax(unread))]
            sentence = f'{_column_title(asset, name)} is "{cell}", {why_unread(cell)}.'
            faults.report(asset.table, asset.rows[unread], sentence)
            usable &= ~unread
    return _only(asset, cells, usable)


def _only(asset: Asset, cells: Cells, keep: NDArray[np.bool_]) -> tuple[Asset, Cells]:
    return replace(asset, rows=asset.rows[keep]), {name: values[keep] for name, values in cells.items()}


def _column_title(asset: Asset, name: str) -> str:
    """The name of the column in messages; in a wide table, it already contains the symbol."""
    title = asset.fields[name]
    return title if asset.symbol in title else f"{title} of {asset.symbol}"


def _price_columns(cells: Cells) -> list[str]:
    return [name for name in (*_PRICES, "bid", "ask", "adjusted") if name in cells]


def _checks(cells: Cells) -> list[Check]:
    return [
        *(partial(check, name) for name in _price_columns(cells) for check in (_missing_prices, _bad_prices)),
        *([partial(_crossed, "low", "high")] if {"high", "low"} <= cells.keys() else []),
        *([partial(_crossed, "bid", "ask")] if {"bid", "ask"} <= cells.keys() else []),
        *([_bad_volumes] if "volume" in cells else []),
        _second_bars,
    ]


def _missing_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    remedy = "drop the row, or write in the price that was known at that time"
    return np.isnan(cells[name]), lambda i: f"{_column_title(asset, name)} is empty or not a number; {remedy}."


def _bad_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    prices = cells[name]

    def sentence(i: int) -> str:
        return (
            f"{_column_title(asset, name)} is {prices[i]:g}, but a price is positive and finite; fix or drop the row."
        )

    return ~(np.isfinite(prices) & (prices > 0)), sentence


def _crossed(lower: str, upper: str, asset: Asset, cells: Cells) -> Fault:
    low, high = cells[lower], cells[upper]
    crossed = high < low

    def sentence(i: int) -> str:
        message = f"the {upper} of {asset.symbol} is {high[i]:g}, below its {lower} of {low[i]:g}"
        if crossed.mean() > _SWAPPED:
            return f"{message}, as in most rows; the columns are probably swapped, rename them."
        return f"{message}; fix or drop the row."

    return crossed, sentence


def _bad_volumes(asset: Asset, cells: Cells) -> Fault:
    volume = cells["volume"]

    def sentence(i: int) -> str:
        title = _column_title(asset, "volume")
        return f"{title} is {volume[i]:g}, but a volume is finite and not negative; fix the cell or empty it."

    return (volume < 0) | np.isinf(volume), sentence


def _second_bars(asset: Asset, cells: Cells) -> Fault:
    times = asset.times[asset.rows]
    second = np.full(len(times), True)
    second[np.unique(times, return_index=True)[1]] = False
    return second, lambda i: f"a second bar of {asset.symbol} at {as_text(times[i])}; drop one of the two."


def _check_order(asset: Asset, faults: Faults) -> list[str]:
    """A notice if the rows have the newest first; rows in no order are reported."""
    times = asset.times[asset.rows]
    steps = np.diff(times).astype(np.int64)
    backward = bool(steps.size) and np.median(steps) < 0
    if (wrong := np.flatnonzero((steps > 0) if backward else (steps < 0))).size:
        row, before = times[wrong[0] + 1], times[wrong[0]]
        where = f"{asset.symbol} at {as_text(row)} comes after {as_text(before)}"
        faults.report(asset.table, asset.rows[wrong + 1], f"{where}, which is out of order; sort the rows by time.")
        return []
    return [f"{asset.table.name}: rows were newest first; sorted"] if backward else []


def _about_units(asset: Asset) -> list[str]:
    """A sentence if the Unix times of the table change their unit."""
    if (change := asset.read_times.unit_change) is None:
        return []
    place = asset.table.place(change.row)
    return [
        f"{place}: from here on times are in {change.after} instead of {change.before}; each is read in its own unit"
    ]


def _check_jumps(asset: Asset, times: NDArray[np.datetime64], faults: Faults) -> None:
    """Report the first bar that comes years after the bar before, as where times change their unit or their year."""
    steps = np.diff(times)
    if not steps.size:
        return
    far = np.flatnonzero(steps > max(_JUMP, _JUMP_BARS * np.median(steps)))
    if far.size:
        years = steps[far[0]] / np.timedelta64(1, "D") / 365.25
        sentence = (
            f"{asset.symbol} at {as_text(times[far[0] + 1])} comes {years:.0f} years after the bar before at "
            f"{as_text(times[far[0]])}; fix the times, or put the bars from here on into a file of their own."
        )
        faults.report(asset.table, asset.rows[far + 1], sentence, droppable=False)


def _fields(asset: Asset, cells: Cells, notices: list[str]) -> Cells:
    """The arguments of `market_from_arrays`: adjusted prices, and a notice for each column that is missing."""
    source = asset.table.name
    fields = {name: values for name, values in cells.items() if name.startswith(FEATURE_PREFIX)}
    if {"bid", "ask"} <= cells.keys():
        bid, ask = cells["bid"], cells["ask"]
        middle = bid + (ask - bid) / 2
        fields["half_spread"] = (ask - bid) / 2 / middle
        if "close" not in cells:
            cells = {**cells, "close": middle}
            notices.append(f"{source}: no column for close; the middle of bid and ask is used instead")
    fields["volume"] = _volume(asset, cells.get("volume"), notices)
    notices += _swapped_volumes(asset, cells["close"])
    factor = np.ones(len(asset.rows))
    if "adjusted" in cells and not np.array_equal(cells["adjusted"], cells["close"]):
        factor = cells["adjusted"] / cells["close"]
        notices.append(f"{source}: prices were adjusted to column {asset.fields['adjusted']}")
    if missing := [name for name in _PRICES if name not in cells]:
        notices.append(f"{source}: no column for {', '.join(missing)}; the close of the bar is used instead")
    return fields | {name: cells.get(name, cells["close"]) * factor for name in _PRICES}


def _swapped_volumes(asset: Asset, close: FloatArray) -> list[str]:
    """A sentence if two volume columns, one in units and one in money, are swapped.

    Their ratio is the price; if they are swapped, it is the inverse of the price.
    """
    titles = [name for name in asset.table.frame.columns if name.lower().startswith("volume")]
    titles.sort(key=lambda name: any(word in name.lower() for word in _MONEY))  # the one in money last
    if len(titles) != 2 or asset.fields.get("volume") not in titles:
        return []
    (units, _), (money, _) = parse_numbers([asset.table.frame[title].gather(asset.rows) for title in titles])
    with np.errstate(divide="ignore", invalid="ignore"):
        straight, swapped = (np.abs(np.log(ratio / close)) < np.log(2) for ratio in (money / units, units / money))
    if not (straight.any() and swapped.any()):
        return []
    times = asset.times[asset.rows][swapped]
    return [
        f"{asset.table.name}: columns {titles[0]} and {titles[1]} are swapped in {swapped.sum():,} of {len(close):,} "
        f"rows, from {as_text(times.min())} to {as_text(times.max())}; swap them back in those rows, or leave features "
        "of volume out"
    ]


def _volume(asset: Asset, volume: FloatArray | None, notices: list[str]) -> FloatArray:
    if volume is None:
        notices.append(f"{asset.table.name}: no column for volume; taken as 0")
        return np.zeros(len(asset.rows))
    if empty := int(np.isnan(volume).sum()):
        notices.append(f"{asset.table.name}: {_column_title(asset, 'volume')} was empty in {empty:,} rows; taken as 0")
    return np.nan_to_num(volume, nan=0.0)
