"""The bars of one asset: where they are in a table, how to read them, and which rows are invalid."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.trading.market.columns import FEATURE_PREFIX, Layout, source_of
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.numbers import parse_numbers, why_unread
from ml_pipeline.trading.market.plausibility import (
    MOST_ASK_OVER_BID,
    MOST_OUTSIDE,
    MOST_TAKEN_BACK,
    outside_range,
    wrong_ticks,
)
from ml_pipeline.trading.market.tables import Faults, Table
from ml_pipeline.trading.market.times import BarTime, ReadTimes, as_text

if TYPE_CHECKING:
    import polars as pl


PRICES = ("open", "high", "low", "close")

Cells = dict[str, FloatArray]


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


def only_rows(asset: Asset, cells: Cells, keep: NDArray[np.bool_]) -> tuple[Asset, Cells]:
    """The asset and its cells in the rows to keep."""
    if keep.all():
        return asset, cells
    return replace(asset, rows=asset.rows[keep]), {name: values[keep] for name, values in cells.items()}


def column_title(asset: Asset, name: str) -> str:
    """The name of the column in messages; in a wide table, it already contains the symbol."""
    title = asset.fields[name]
    return title if asset.symbol in title else f"{title} of {asset.symbol}"


# A step between bars above both of these is not a pause in trading.
_JUMP = np.timedelta64(2 * 366, "D")
_JUMP_BARS = 20
# Words in the titles of volume columns in money.
_MONEY = ("usd", "eur", "gbp", "jpy", "dai", "quote", "money")


@dataclass(frozen=True, eq=False)
class AssetBars:
    """The bars of one asset, oldest first.

    bar_time: whether times mark the open or the close of bars, if the title of the time column states it. notices:
    sentences about changes to the data. days: if `times` are midnights of an exchange, their dates there. outside:
    whether open or close lies outside low..high; None if the table has no low and high.
    """

    symbol: str
    times: NDArray[np.datetime64]
    fields: dict[str, FloatArray]
    bar_time: BarTime | None
    notices: list[str]
    days: NDArray[np.datetime64] | None = None
    outside: NDArray[np.bool_] | None = None


def read_bars(asset: Asset, faults: Faults) -> AssetBars:
    """The bars of the asset, oldest first. Raises UserError for invalid rows, by `faults`, and if none is left."""
    notices = _about_header(asset)
    asset, cells = _read_cells(asset, faults, notices)
    # In a wide table, a row without any price means that this asset has no bar; elsewhere it is an error.
    if asset.layout.symbol is None and "" not in asset.layout.fields:
        prices = [cells[name] for name in price_columns(cells)]
        asset, cells = only_rows(asset, cells, ~np.all(np.isnan(prices), axis=0))
    for check in checks_of(cells):
        bad, sentence = check(asset, cells)
        if bad.any():
            faults.report(asset.table, asset.rows[bad], sentence(int(np.argmax(bad))))
            asset, cells = only_rows(asset, cells, ~bad)
    if not len(asset.rows):
        reason = next((f" {sentence}" for sentence in faults.sentences if asset.table.name in sentence), "")
        raise UserError(f"{asset.table.name}: no row of {asset.symbol} can be used; use other data.{reason}")
    if (zone := asset.layout.zone) == asset.read_times.zone and zone not in {None, "UTC"}:
        notices.append(f"{asset.table.name}: times were converted from {zone}, the zone in their column title, to UTC")
    notices += [*_about_units(asset), *_check_order(asset, faults)]
    fields = _fields(asset, cells, notices)
    times = asset.times[asset.rows]
    days = None if asset.read_times.days is None else asset.read_times.days[asset.rows]
    if (np.diff(times) < np.timedelta64(0, "ns")).any():
        order = np.argsort(times)
        times, days = times[order], None if days is None else days[order]
        fields = {name: values[order] for name, values in fields.items()}
        asset = replace(asset, rows=asset.rows[order])
    _check_jumps(asset, times, faults)
    outside = outside_range(fields) if {"high", "low"} <= cells.keys() else None
    return AssetBars(asset.symbol, times, fields, asset.layout.bar_time, notices, days, outside)


def _read_cells(asset: Asset, faults: Faults, notices: list[str]) -> tuple[Asset, Cells]:
    """The numbers in the rows of the asset; NaN for an empty cell."""
    frame = asset.table.frame.select([*dict.fromkeys(asset.fields.values())])
    if len(asset.rows) < frame.height:
        frame = frame[asset.rows]
    columns = {name: frame[title] for name, title in asset.fields.items()}
    cells: Cells = {}
    usable = np.full(len(asset.rows), True)
    for (name, column), (numbers, unread) in zip(columns.items(), parse_numbers([*columns.values()]), strict=True):
        cells[name] = numbers
        if name == "volume":
            cells[name] = _readable_volumes(asset, column, numbers, unread, faults, notices)
        elif unread.any():
            cell = in_one_line(column[int(np.argmax(unread))])
            sentence = f'{column_title(asset, name)} is "{cell}", {why_unread(cell)}.'
            faults.report(asset.table, asset.rows[unread], sentence)
            usable &= ~unread
    return only_rows(asset, cells, usable)


def _readable_volumes(  # noqa: PLR0917
    asset: Asset,
    column: "pl.Series",
    volumes: FloatArray,
    unread: NDArray[np.bool_],
    faults: Faults,
    notices: list[str],
) -> FloatArray:
    """The volumes, with NaN for invalid ones; a column without any volume is a notice and not an error."""
    bad = unread | (volumes < 0) | np.isinf(volumes)
    if not bad.any():
        return volumes
    i = int(np.argmax(bad))
    title = column_title(asset, "volume")
    why = (
        f'"{column[i]}", {why_unread(str(column[i]))}'
        if unread[i]
        else f"{volumes[i]:g}, but a volume is finite and not negative; fix the cell or empty it"
    )
    if (bad | np.isnan(volumes)).all():
        notices.append(
            f"{asset.table.name}: {title} holds no volume in any row, first {column[i]}; taken as 0, so leave out "
            "features that use volume"
        )
    else:
        faults.report(asset.table, asset.rows[bad], f"{title} is {why}.", emptied=True)
    return np.where(bad, np.nan, volumes)


def _about_header(asset: Asset) -> list[str]:
    """A sentence about the columns of a file without a header."""
    table, layout = asset.table, asset.layout
    if table.has_titles or any(title.isdecimal() for _, title in table.dialect.columns):
        return []
    titles = [*layout.time, *table.frame.columns]
    source = source_of(titles, has_header=False)
    known = "" if source is None else f", the layout of {source.name}"
    return [f"{table.name}: there is no header; columns were read as {', '.join(titles)}{known}"]


def _check_order(asset: Asset, faults: Faults) -> list[str]:
    """A notice if the newest row comes first; unordered rows are reported as invalid."""
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
        f"{place}: from this row on, times are in {change.after} instead of {change.before}; each is read in its unit"
    ]


def _check_jumps(asset: Asset, times: NDArray[np.datetime64], faults: Faults) -> None:
    """Report the first bar that comes years after the previous one, as when times change their unit or year."""
    steps = np.diff(times)
    if not steps.size:
        return
    far = np.flatnonzero(steps > max(_JUMP, _JUMP_BARS * np.median(steps)))
    if far.size:
        years = steps[far[0]] / np.timedelta64(1, "D") / 365.25
        sentence = (
            f"{asset.symbol} at {as_text(times[far[0] + 1])} comes {years:.0f} years after the bar before at "
            f"{as_text(times[far[0]])}; fix the times, or move the bars from here on to a separate file."
        )
        faults.report(asset.table, asset.rows[far + 1], sentence, droppable=False)


def _fields(asset: Asset, cells: Cells, notices: list[str]) -> Cells:
    """The arguments of `market_from_arrays`, with adjusted prices; adds a notice for each missing column."""
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
    factor = None
    if "adjusted" in cells and not np.array_equal(cells["adjusted"], cells["close"]):
        factor = cells["adjusted"] / cells["close"]
        notices.append(f"{source}: prices were adjusted to column {asset.fields['adjusted']}")
    if missing := [name for name in PRICES if name not in cells]:
        notices.append(f"{source}: no column for {', '.join(missing)}; the close of the bar is used instead")
    prices = {name: cells.get(name, cells["close"]) for name in PRICES}
    return fields | (prices if factor is None else {name: values * factor for name, values in prices.items()})


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
        f"rows, from {as_text(times.min())} to {as_text(times.max())}; swap them back in those rows, or leave out "
        "features that use volume"
    ]


def _volume(asset: Asset, volume: FloatArray | None, notices: list[str]) -> FloatArray:
    if volume is None:
        notices.append(f"{asset.table.name}: no column for volume; taken as 0")
        return np.zeros(len(asset.rows))
    empty = int(np.isnan(volume).sum())
    if 0 < empty < len(volume) or (empty and not any("holds no volume" in notice for notice in notices)):
        notices.append(
            f"{asset.table.name}: {column_title(asset, 'volume')} was empty in {counted(empty, 'row')}; taken as 0"
        )
    return np.nan_to_num(volume, nan=0.0)


# If high is below low in more than this fraction of the bars, the columns are probably swapped.
_SWAPPED = 0.5

# Which rows of the asset are invalid, and a function that describes one of them.
Fault = tuple[NDArray[np.bool_], Callable[[int], str]]
Check = Callable[["Asset", Cells], Fault]


def checks_of(cells: Cells) -> list[Check]:
    """The checks for the available columns, in order."""
    checks: list[Check] = [
        partial(check, name) for name in price_columns(cells) for check in (_missing_prices, _bad_prices)
    ]
    if {"high", "low"} <= cells.keys():
        checks.append(partial(_crossed, "low", "high"))
    if {"high", "low", "close"} <= cells.keys():
        checks.append(_far_outside)
    if {"bid", "ask"} <= cells.keys():
        checks += [partial(_crossed, "bid", "ask"), _far_apart]
    return [*checks, _second_bars, *([_wrong_ticks] if "close" in cells else [])]


def _missing_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    remedy = "drop the row, or write in the price that was known at that time"
    return np.isnan(cells[name]), lambda i: f"{column_title(asset, name)} is empty or not a number; {remedy}."


def _bad_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    prices = cells[name]

    def sentence(i: int) -> str:
        return f"{column_title(asset, name)} is {prices[i]:g}, but a price is positive and finite; fix or drop the row."

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


def _range_and_ends(cells: Cells) -> Cells:
    return {"open": cells.get("open", cells["close"]), **{name: cells[name] for name in ("high", "low", "close")}}


def _far_outside(asset: Asset, cells: Cells) -> Fault:
    """Prices too far outside their bar's range for a trade."""
    bars = _range_and_ends(cells)

    def sentence(i: int) -> str:
        with np.errstate(all="ignore"):
            distance = {
                name: max(bars[name][i] / bars["high"][i], bars["low"][i] / bars[name][i]) for name in ("open", "close")
            }
        name = max(distance, key=lambda name: distance[name])
        return (
            f"{name} of {asset.symbol} is {bars[name][i]:g}, far outside its low..high of {bars['low'][i]:g} to "
            f"{bars['high'][i]:g}; fix or drop the row."
        )

    return outside_range(bars, times=MOST_OUTSIDE), sentence


def _far_apart(asset: Asset, cells: Cells) -> Fault:
    bid, ask = cells["bid"], cells["ask"]

    def sentence(i: int) -> str:
        with np.errstate(over="ignore"):
            times = ask[i] / bid[i]
        return (
            f"the ask of {asset.symbol} is {ask[i]:g}, {times:.3g} times its bid of {bid[i]:g}, which no market "
            "quotes; fix or drop the row."
        )

    with np.errstate(over="ignore"):
        return ask > MOST_ASK_OVER_BID * bid, sentence


def _second_bars(asset: Asset, cells: Cells) -> Fault:
    times = asset.times[asset.rows]
    steps = np.diff(times).astype(np.int64)
    second = np.zeros(len(times), dtype=bool)
    if not ((steps > 0).all() or (steps < 0).all()):
        second[:] = True
        second[np.unique(times, return_index=True)[1]] = False
    return second, lambda i: f"a second bar of {asset.symbol} at {as_text(times[i])}; drop one of the two."


def _wrong_ticks(asset: Asset, cells: Cells) -> Fault:
    """Closes that are implausible between their neighbours; unordered rows are not checked."""
    close = cells["close"]
    wrong = np.zeros(len(close), dtype=bool)
    steps = np.diff(asset.times[asset.rows]).astype(np.int64)
    if (steps > 0).all() or (steps < 0).all():
        wrong[wrong_ticks(close, times=MOST_TAKEN_BACK)] = True

    def sentence(i: int) -> str:
        return (
            f"close of {asset.symbol} is {close[i]:g}, but {close[i - 1]:g} and {close[i + 1]:g} in the bars before "
            "and after it, which looks like a wrong tick; fix or drop the row."
        )

    return wrong, sentence


def price_columns(cells: Cells) -> list[str]:
    """The columns that hold prices."""
    return [name for name in (*PRICES, "bid", "ask", "adjusted") if name in cells]
