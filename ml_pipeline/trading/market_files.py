"""Market data from CSV and Parquet files, checked cell by cell; what cannot be used is named with its row."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.trading.features import COLUMN
from ml_pipeline.trading.market_columns import Layout, find_layout
from ml_pipeline.trading.market_data import BarTime, FloatArray, MarketData, as_text, market_from_arrays
from ml_pipeline.trading.market_tables import Table, read_table
from ml_pipeline.trading.market_times import EXPECTED_TIMES, AmbiguousTimesError, parse_times

if TYPE_CHECKING:
    import polars as pl

_PRICES = ("open", "high", "low", "close")
# With fewer bars, each step between two of them may be a gap.
_FEWEST_TO_TELL_SPACING = 4
# Bars so many times as long as others are of another length; months, of 28 to 31 days, are of one.
_LONGER = 1.5
_SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".pq")


def load_market(path: str | Path, *, symbols: Sequence[str] | None = None, bar_time: BarTime = "open") -> MarketData:
    """The market in a file, or in a folder with a file a symbol; of it the named `symbols`, in this order, or all.

    A CSV or Parquet file holds one asset; or many, one below the other with a symbol column; or many side by side
    (`BTC:close`). Quotes are columns bid and ask, and feature_NAME is a feature. Columns and times go by their usual
    spellings (`market_columns`, `market_times`). Rows newest first are sorted, prices adjusted where there is an
    adjusted close, each with a notice. Everything else that is wrong
    raises UserError: one sentence with file, row (data rows from 1), symbol and remedy.

    bar_time: whether the times in the data are when bars open or close. It matters where assets have bars of different
    length: a bar then takes its place on the timeline when it closes, so that no day is known at its first hour.
    """
    path = Path(path)
    tables = ((read_table(file), file.name.split(".")[0]) for file in _files(path))
    return _market_of(tables, path.name, symbols, bar_time)


def market_from_frame(
    frame: Any, *, symbols: Sequence[str] | None = None, name: str = "the frame", bar_time: BarTime = "open"
) -> MarketData:
    """The market in a polars or pandas DataFrame, laid out as a file for `load_market` is; a pandas index is its time.

    `name` is what sentences, and the symbol of a table of one asset, call it.
    """
    import polars as pl

    if not isinstance(frame, pl.DataFrame):
        columns = {str(frame.index.name or "time"): frame.index} if frame.index.dtype != np.int64 else {}
        columns |= {str(title): frame[title] for title in frame.columns}
        frame = pl.DataFrame({title: _plain_column(values) for title, values in columns.items()})
    return _market_of([(Table(name, frame, 0), name)], name, symbols, bar_time)


def _plain_column(column: Any) -> Any:
    """A pandas column or index as what polars takes without pyarrow; times with a zone in UTC."""
    if getattr(column.dtype, "tz", None) is not None:
        column = (column.dt if hasattr(column, "dt") else column).tz_convert("UTC")
        column = (column.dt if hasattr(column, "dt") else column).tz_localize(None)
    values = column.to_numpy()
    return values.tolist() if values.dtype == object else values


def _market_of(
    tables: Iterable[tuple[Table, str]], source: str, symbols: Sequence[str] | None, bar_time: BarTime
) -> MarketData:
    """The market of tables, each with the symbol that it has where it names none."""
    assets: dict[str, _Asset] = {}
    for asset in (asset for table, name in tables for asset in _assets_of(table, name)):
        if asset.symbol in assets:
            raise UserError(
                f"{asset.symbol} is in {assets[asset.symbol].table.name} and in {asset.table.name}; keep one."
            )
        assets[asset.symbol] = asset
    for symbol in symbols or ():
        if symbol not in assets:
            raise UserError(f'{source} has no symbol "{symbol}". {nearest(symbol, assets)}')
    read = _on_one_clock([_read_bars(assets[symbol]) for symbol in symbols or assets], bar_time)

    times = np.unique(np.concatenate([bars.times for bars in read]))
    names = dict.fromkeys(name for bars in read for name in bars.fields)
    fields = {name: np.full((len(times), len(read)), np.nan) for name in names}
    for column, bars in enumerate(read):
        rows = np.searchsorted(times, bars.times)
        for name, values in bars.fields.items():
            fields[name][rows, column] = values
    return market_from_arrays(
        [bars.symbol for bars in read],
        times,
        fields["close"],
        open=fields["open"],
        high=fields["high"],
        low=fields["low"],
        volume=fields["volume"],
        half_spread=fields.get("half_spread"),
        columns={name: values for name, values in fields.items() if name.startswith(COLUMN)},
        notices=list(dict.fromkeys(notice for bars in read for notice in bars.notices)),
        source=source,
    )


def _on_one_clock(read: "list[_AssetBars]", bar_time: BarTime) -> "list[_AssetBars]":
    """Bars of different length where they close, on a clock that the shortest keep as it is."""
    spacings = [_spacing(bars.times) for bars in read]
    known = [spacing for spacing in spacings if spacing is not None]
    if bar_time == "close" or not known:
        return read
    clock = min(known)
    moved = []
    for bars, spacing in zip(read, spacings, strict=True):
        if spacing is None or spacing < _LONGER * clock:
            moved.append(bars)
            continue
        notice = f"{bars.symbol}: its bars are longer than others' and were put where they close"
        times = _ends(bars.times, spacing) - np.timedelta64(clock, "ns")
        moved.append(replace(bars, times=times, notices=[*bars.notices, notice]))
    return moved


def _spacing(times: NDArray[np.datetime64]) -> int | None:
    """From one bar to the next in ns, as a rule: neither stray bars nor gaps tell. None where bars are too few."""
    if len(times) < _FEWEST_TO_TELL_SPACING:
        return None
    return int(np.quantile(np.diff(times).astype(np.int64), 0.25, method="lower"))


def _ends(times: NDArray[np.datetime64], spacing: int) -> NDArray[np.datetime64]:
    """When each bar is over: as the next begins, or, before a gap and at the end, after the longest usual bar.

    Months have 28 to 31 days: no bar may be known before its own end.
    """
    steps = np.diff(times).astype(np.int64)
    longest = steps[steps < _LONGER * spacing].max()
    return times + np.minimum(np.append(steps, longest), longest).astype("timedelta64[ns]")


@dataclass(frozen=True, eq=False)
class _Asset:
    """Where an asset's bars are: columns by meaning, and rows, in a table."""

    symbol: str
    table: Table
    layout: Layout
    fields: dict[str, str]
    rows: NDArray[np.int64]
    times: NDArray[np.datetime64]  # of every row of the table

    def error(self, row: int, problem: str) -> UserError:
        return UserError(f"{self.table.place(row)}: {problem}")


@dataclass(frozen=True, eq=False)
class _AssetBars:
    symbol: str
    times: NDArray[np.datetime64]
    fields: dict[str, FloatArray]
    notices: list[str]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"There is no market data at {path}; check the path.")
    if path.is_file():
        return [path]
    files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix.lower() in _SUFFIXES and p.name[0] != ".")
    if not files:
        raise UserError(f"The folder {path} holds no market data; expected CSV or Parquet files, one a symbol.")
    return files


def _assets_of(table: Table, name: str) -> Iterator[_Asset]:
    """The assets that a table holds, `name` where it names none; their cells are not read yet."""
    layout = find_layout(table.frame.columns)
    for there, kind, expected in ((layout.fields, "price", "close"), (layout.time, "time", "time")):
        if not there:
            has = _listed(table.frame.columns)
            remedy = "; is the header missing? Write one above the rows" if _lacks_header(table) else ""
            raise UserError(f"{table.name} has no {kind} column; expected {expected}, but it has: {has}{remedy}.")
    times = _times_of(table, layout)
    every_row = np.arange(table.frame.height)
    if layout.symbol is None:
        for symbol, fields in layout.fields.items():
            yield _Asset(symbol or name, table, layout, fields, every_row, times)
        return
    names = table.frame[layout.symbol].cast(str).str.strip_chars()
    if (blank := np.flatnonzero((names.is_null() | (names == "")).to_numpy())).size:
        raise UserError(f"{table.place(int(blank[0]))}: {layout.symbol} is empty; name the symbol or drop the row.")
    for symbol in names.unique(maintain_order=True).to_list():
        yield _Asset(symbol, table, layout, layout.fields[""], np.flatnonzero((names == symbol).to_numpy()), times)


def _lacks_header(table: Table) -> bool:
    """Whether what should be names of columns are numbers."""
    return table.header_line > 0 and any(re.fullmatch(r"[\d.]+", name.strip()) for name in table.frame.columns)


def _times_of(table: Table, layout: Layout) -> NDArray[np.datetime64]:
    columns = [table.frame[name] for name in layout.time]
    if len(columns) == 2:
        clock = columns[1].cast(str)
        joined = bool(clock.str.contains(r"^\s*\d{1,2}:\d\d").all())
        columns = [columns[0].cast(str) + " " + clock] if joined else [columns[1]]
    try:
        times = parse_times(columns[0])
    except AmbiguousTimesError as error:
        raise UserError(
            f"{table.name}: a time like {error} can be read with the day first or the month first, "
            "and no row tells which; write 2024-01-31."
        ) from error
    if (unread := np.flatnonzero(np.isnat(times))).size:
        row = int(unread[0])
        cell = columns[0][row]
        problem = "the time is empty" if cell in (None, "") else f'"{cell}" is not a time; expected {EXPECTED_TIMES}'
        raise UserError(f"{table.place(row)}: {problem}; mend or drop the row.")
    return times


def _read_bars(asset: _Asset) -> _AssetBars:
    """The asset's bars, oldest first, every cell checked."""
    notices: list[str] = []
    cells = {name: _numbers(asset, asset.table.frame[column]) for name, column in asset.fields.items()}
    # In a wide table a row without any price is one where this asset has no bar; elsewhere it is a mistake.
    wide = asset.layout.symbol is None and "" not in asset.layout.fields
    prices = {name: cells[name] for name in (*_PRICES, "bid", "ask", "adjusted") if name in cells}
    present = (
        ~np.all([np.isnan(values) for values in prices.values()], axis=0) if wide else np.full(len(asset.rows), True)
    )
    asset = replace(asset, rows=asset.rows[present])
    cells = {name: values[present] for name, values in cells.items()}
    for name in prices:
        _check_prices(asset, asset.fields[name], cells[name])
    _check_ranges(asset, cells)

    notices += _check_order(asset)
    half_spread = _read_quotes(asset, cells, notices)
    volume = _volume(asset, cells.pop("volume", None), notices)
    factor = np.ones(len(asset.rows))
    if "adjusted" in cells and not np.array_equal(cells["adjusted"], cells["close"]):
        factor = cells["adjusted"] / cells["close"]
        notices.append(f"{asset.table.name}: prices were adjusted to column {asset.fields['adjusted']}")
    if missing := [name for name in _PRICES if name not in cells]:
        notices.append(f"{asset.table.name}: no column for {', '.join(missing)}; the bar's close stands in")
    fields = {name: cells.get(name, cells["close"]) * factor for name in _PRICES}
    fields |= {name: values for name, values in cells.items() if name.startswith(COLUMN)}
    fields |= {"volume": volume} if half_spread is None else {"volume": volume, "half_spread": half_spread}
    times = asset.times[asset.rows]
    order = np.argsort(times)
    return _AssetBars(asset.symbol, times[order], {name: values[order] for name, values in fields.items()}, notices)


def _read_quotes(asset: _Asset, cells: dict[str, FloatArray], notices: list[str]) -> FloatArray | None:
    """Half-spreads where there are a bid and an ask; without a close, their middle becomes it."""
    if not {"bid", "ask"} <= cells.keys():
        return None
    bid, ask = cells["bid"], cells["ask"]
    if (crossed := np.flatnonzero(ask < bid)).size:
        row = crossed[0]
        problem = f"the ask of {asset.symbol} is {ask[row]:g}, below its bid of {bid[row]:g}; mend or drop the row."
        raise asset.error(asset.rows[row], problem)
    middle = (bid + ask) / 2
    if "close" not in cells:
        cells["close"] = middle
        notices.append(f"{asset.table.name}: no column for close; the middle of bid and ask is the close")
    return np.asarray((ask - bid) / 2 / middle)


def _numbers(asset: _Asset, column: "pl.Series") -> FloatArray:
    """The column's cells in the asset's rows; NaN where empty."""
    import polars as pl

    cells = column.gather(asset.rows)
    if not column.dtype.is_numeric():
        text = cells.cast(pl.String).str.strip_chars()
        text = text.set(text.str.to_lowercase().is_in(["", "na", "n/a", "null", "none", "-"]), None)
        cells = text.cast(pl.Float64, strict=False)
        if (unread := np.flatnonzero((cells.is_null() & text.is_not_null()).to_numpy())).size:
            row = int(unread[0])
            raise asset.error(
                asset.rows[row],
                f'{column.name} is "{text[row]}", which is not a number like 1234.56; mend or drop the row.',
            )
    return cells.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _check_prices(asset: _Asset, column: str, prices: FloatArray) -> None:
    bad = np.flatnonzero(~(np.isfinite(prices) & (prices > 0)))
    if bad.size:
        row, price = asset.rows[bad[0]], prices[bad[0]]
        whose = column if asset.symbol in column else f"{column} of {asset.symbol}"
        if np.isnan(price):
            raise asset.error(
                row, f"{whose} is empty; drop the row, or write in the price that was known at that time."
            )
        raise asset.error(row, f"{whose} is {price:g}, but a price is positive and finite; mend or drop the row.")


def _check_ranges(asset: _Asset, cells: dict[str, FloatArray]) -> None:
    """No bar's high lies below its low."""
    if not {"high", "low"} <= cells.keys():
        return
    high, low = cells["high"], cells["low"]
    if (crossed := np.flatnonzero(high < low)).size:
        row = crossed[0]
        problem = f"the high of {asset.symbol} is {high[row]:g}, below its low of {low[row]:g}; mend or drop the row."
        raise asset.error(asset.rows[row], problem)


def _check_order(asset: _Asset) -> list[str]:
    """Nothing to say of rows oldest first, a notice of rows newest first."""
    times = asset.times[asset.rows]
    steps = np.diff(times)
    backward = bool(steps.size) and np.median(steps.astype(np.int64)) < 0
    if (same := np.flatnonzero(steps == np.timedelta64(0))).size:
        row = asset.rows[same[0] + 1]
        raise asset.error(row, f"a second bar of {asset.symbol} at {as_text(asset.times[row])}; drop one of the two.")
    if (wrong := np.flatnonzero((steps > np.timedelta64(0)) if backward else (steps < np.timedelta64(0)))).size:
        row, before = asset.rows[wrong[0] + 1], asset.rows[wrong[0]]
        where = f"{asset.symbol} at {as_text(asset.times[row])} comes after {as_text(asset.times[before])}"
        raise asset.error(row, f"{where}, which is out of order; sort the rows by time.")
    return [f"{asset.table.name}: rows were newest first; sorted"] if backward else []


def _volume(asset: _Asset, volume: FloatArray | None, notices: list[str]) -> FloatArray:
    if volume is None:
        notices.append(f"{asset.table.name}: no column for volume; taken as 0")
        return np.zeros(len(asset.rows))
    if (bad := np.flatnonzero((volume < 0) | np.isinf(volume))).size:
        row = asset.rows[bad[0]]
        raise asset.error(
            row, f"{asset.fields['volume']} is {volume[bad[0]]:g}, but a volume is finite and not negative."
        )
    if empty := int(np.isnan(volume).sum()):
        notices.append(
            f"{asset.table.name}: {asset.fields['volume']} of {asset.symbol} was empty in {empty:,} rows; taken as 0"
        )
    return np.nan_to_num(volume, nan=0.0)


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:12])
    return shown + (", ..." if len(columns) > 12 else "")
