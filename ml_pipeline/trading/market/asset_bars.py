"""Reads the bars of one asset from a table and checks every cell; messages name the row of an unusable one."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.trading.market.asset import PRICES, Asset, Cells, column_title, only_rows
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.faults import Faults
from ml_pipeline.trading.market.numbers import parse_numbers, why_unread
from ml_pipeline.trading.market.plausibility import outside_range
from ml_pipeline.trading.market.row_checks import checks_of, price_columns
from ml_pipeline.trading.market.sources import source_of
from ml_pipeline.trading.market.times import BarTime, as_text

if TYPE_CHECKING:
    import polars as pl

# A step between bars beyond both of these is no pause in trading.
_JUMP = np.timedelta64(2 * 366, "D")
_JUMP_BARS = 20
# Parts of the names of volume columns in money.
_MONEY = ("usd", "eur", "gbp", "jpy", "dai", "quote", "money")


@dataclass(frozen=True, eq=False)
class AssetBars:
    """The bars of one asset, oldest first.

    bar_time: whether times are when bars open or close, if the name of the time column tells. notices: sentences about
    changes to the data. days: the midnights of the exchange that `times` are in UTC, if they are any. outside: whether
    open or close lies outside low..high; None if the table has no low and high.
    """

    symbol: str
    times: NDArray[np.datetime64]
    fields: dict[str, FloatArray]
    bar_time: BarTime | None
    notices: list[str]
    days: NDArray[np.datetime64] | None = None
    outside: NDArray[np.bool_] | None = None


def read_bars(asset: Asset, faults: Faults) -> AssetBars:
    """The bars of the asset, oldest first. Raises UserError for unusable rows, by `faults`, and if none is left."""
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
        notices.append(
            f"{asset.table.name}: times were converted from {zone} to UTC, as the title of their column says"
        )
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
    """The volumes with NaN where they cannot be; a column that holds no volume at all is a notice, and no fault."""
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
            f"{asset.table.name}: {title} holds no volume in any row, first {column[i]}; taken as 0, so leave features "
            "of volume out"
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
    known = "" if source is None else f", as {source.name} have them"
    return [f"{table.name}: it has no header; its columns were read as {', '.join(titles)}{known}"]


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
        f"rows, from {as_text(times.min())} to {as_text(times.max())}; swap them back in those rows, or leave features "
        "of volume out"
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
