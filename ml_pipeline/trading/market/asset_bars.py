"""One asset's bars out of a table, every cell checked; what cannot be used is named with its row."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.columns import FEATURE_PREFIX, Layout
from ml_pipeline.trading.market.data import BarTime, FloatArray, as_text
from ml_pipeline.trading.market.numbers import parse_numbers, why_unread
from ml_pipeline.trading.market.tables import Table

_PRICES = ("open", "high", "low", "close")
# Where so large a part of the bars is upside down, it is not the bars: columns bear each other's names.
_SWAPPED = 0.5
# What the name of a volume in money has in it.
_MONEY = ("usd", "eur", "gbp", "jpy", "dai", "quote", "money")

Cells = dict[str, FloatArray]
# Which of the asset's rows cannot be used, and the sentence about one of them.
Fault = tuple[NDArray[np.bool_], Callable[[int], str]]
Check = Callable[["Asset", Cells], Fault]


@dataclass(frozen=True, eq=False)
class Asset:
    """Where an asset's bars are: columns by meaning, and rows, in a table."""

    symbol: str
    table: Table
    layout: Layout
    fields: dict[str, str]
    rows: NDArray[np.int64]
    times: NDArray[np.datetime64]  # of every row of the table


@dataclass(frozen=True, eq=False)
class AssetBars:
    """bar_time: what the name of the column of times says of them. notices: what was found and mended."""

    symbol: str
    times: NDArray[np.datetime64]
    fields: dict[str, FloatArray]
    bar_time: BarTime | None
    notices: list[str]


@dataclass
class Faults:
    """What to do about rows that cannot be used: refuse the first, or, `lenient`, leave them out and remember."""

    lenient: bool = False
    sentences: list[str] = field(default_factory=list)

    def report(self, table: Table, rows: NDArray[np.int64], sentence: str) -> None:
        """Rows of the table, in order; the sentence is about the first. Raises UserError unless lenient."""
        said = f"{table.place(int(rows[0]))}: {sentence}"
        if not self.lenient:
            raise UserError(said)
        if len(rows) > 1:
            said += f" The same in {len(rows):,} rows in all: {table.numbers(rows.tolist())}."
        self.sentences.append(said)


def read_bars(asset: Asset, faults: Faults) -> AssetBars:
    """The asset's bars, oldest first. Raises UserError about rows as `faults` has it, and where none is left."""
    asset, cells = _read_cells(asset, faults)
    # In a wide table a row without any price is one where this asset has no bar; elsewhere it is a mistake.
    if asset.layout.symbol is None and "" not in asset.layout.fields:
        prices = [cells[name] for name in _price_columns(cells)]
        asset, cells = _only(asset, cells, ~np.all(np.isnan(prices), axis=0))
    for check in _checks(cells):
        bad, sentence = check(asset, cells)
        if bad.any():
            faults.report(asset.table, asset.rows[bad], sentence(int(np.argmax(bad))))
            asset, cells = _only(asset, cells, ~bad)
    if not len(asset.rows):
        raise UserError(f"{asset.table.name}: no row of {asset.symbol} can be used; bring other data.")
    notices = _check_order(asset, faults)
    fields = _fields(asset, cells, notices)
    times = asset.times[asset.rows]
    order = np.argsort(times)
    fields = {name: values[order] for name, values in fields.items()}
    return AssetBars(asset.symbol, times[order], fields, asset.layout.bar_time, notices)


def _read_cells(asset: Asset, faults: Faults) -> tuple[Asset, Cells]:
    """The numbers in the asset's rows; NaN where a cell is empty."""
    columns = {name: asset.table.frame[title].gather(asset.rows) for name, title in asset.fields.items()}
    cells: Cells = {}
    usable = np.full(len(asset.rows), True)
    for (name, column), (numbers, unread) in zip(columns.items(), parse_numbers([*columns.values()]), strict=True):
        cells[name] = numbers
        if unread.any():
            cell = column[int(np.argmax(unread))]
            sentence = f'{_whose(asset, name)} is "{cell}", {why_unread(cell)}.'
            faults.report(asset.table, asset.rows[unread], sentence)
            usable &= ~unread
    return _only(asset, cells, usable)


def _only(asset: Asset, cells: Cells, keep: NDArray[np.bool_]) -> tuple[Asset, Cells]:
    return replace(asset, rows=asset.rows[keep]), {name: values[keep] for name, values in cells.items()}


def _whose(asset: Asset, name: str) -> str:
    """The column as a sentence calls it; the columns of a wide table name their asset themselves."""
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
    return np.isnan(cells[name]), lambda i: f"{_whose(asset, name)} is empty or not a number; {remedy}."


def _bad_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    prices = cells[name]

    def sentence(i: int) -> str:
        return f"{_whose(asset, name)} is {prices[i]:g}, but a price is positive and finite; mend or drop the row."

    return ~(np.isfinite(prices) & (prices > 0)), sentence


def _crossed(lower: str, upper: str, asset: Asset, cells: Cells) -> Fault:
    low, high = cells[lower], cells[upper]
    crossed = high < low

    def sentence(i: int) -> str:
        said = f"the {upper} of {asset.symbol} is {high[i]:g}, below its {lower} of {low[i]:g}"
        if crossed.mean() > _SWAPPED:
            return f"{said}, as in most rows; the columns are probably swapped, rename them."
        return f"{said}; mend or drop the row."

    return crossed, sentence


def _bad_volumes(asset: Asset, cells: Cells) -> Fault:
    volume = cells["volume"]

    def sentence(i: int) -> str:
        whose = _whose(asset, "volume")
        return f"{whose} is {volume[i]:g}, but a volume is finite and not negative; mend the cell or empty it."

    return (volume < 0) | np.isinf(volume), sentence


def _second_bars(asset: Asset, cells: Cells) -> Fault:
    times = asset.times[asset.rows]
    second = np.full(len(times), True)
    second[np.unique(times, return_index=True)[1]] = False
    return second, lambda i: f"a second bar of {asset.symbol} at {as_text(times[i])}; drop one of the two."


def _check_order(asset: Asset, faults: Faults) -> list[str]:
    """A notice of rows newest first; rows in no order at all are reported."""
    times = asset.times[asset.rows]
    steps = np.diff(times).astype(np.int64)
    backward = bool(steps.size) and np.median(steps) < 0
    if (wrong := np.flatnonzero((steps > 0) if backward else (steps < 0))).size:
        row, before = times[wrong[0] + 1], times[wrong[0]]
        where = f"{asset.symbol} at {as_text(row)} comes after {as_text(before)}"
        faults.report(asset.table, asset.rows[wrong + 1], f"{where}, which is out of order; sort the rows by time.")
        return []
    return [f"{asset.table.name}: rows were newest first; sorted"] if backward else []


def _fields(asset: Asset, cells: Cells, notices: list[str]) -> Cells:
    """What `market_from_arrays` takes; prices adjusted, and what is missing filled in with a notice."""
    source = asset.table.name
    fields = {name: values for name, values in cells.items() if name.startswith(FEATURE_PREFIX)}
    if {"bid", "ask"} <= cells.keys():
        bid, ask = cells["bid"], cells["ask"]
        middle = bid + (ask - bid) / 2
        fields["half_spread"] = (ask - bid) / 2 / middle
        if "close" not in cells:
            cells = {**cells, "close": middle}
            notices.append(f"{source}: no column for close; the middle of bid and ask is the close")
    fields["volume"] = _volume(asset, cells.get("volume"), notices)
    notices += _swapped_volumes(asset, cells["close"])
    factor = np.ones(len(asset.rows))
    if "adjusted" in cells and not np.array_equal(cells["adjusted"], cells["close"]):
        factor = cells["adjusted"] / cells["close"]
        notices.append(f"{source}: prices were adjusted to column {asset.fields['adjusted']}")
    if missing := [name for name in _PRICES if name not in cells]:
        notices.append(f"{source}: no column for {', '.join(missing)}; the bar's close stands in")
    return fields | {name: cells.get(name, cells["close"]) * factor for name in _PRICES}


def _swapped_volumes(asset: Asset, close: FloatArray) -> list[str]:
    """A sentence where two columns of volume, one in units and one in money, bear each other's names.

    Their ratio is the price; where they are swapped, its inverse.
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
        notices.append(f"{asset.table.name}: {_whose(asset, 'volume')} was empty in {empty:,} rows; taken as 0")
    return np.nan_to_num(volume, nan=0.0)
