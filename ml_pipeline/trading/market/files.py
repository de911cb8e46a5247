"""Market data from CSV and Parquet files and from data frames.

Assets whose bars have different lengths are aligned so that no bar is known before it closes.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.trading.market.asset_bars import Asset, AssetBars
from ml_pipeline.trading.market.columns import FEATURE_PREFIX, Dialect, Layout, is_usual
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.market.joined_files import Parts, paired, read_asset
from ml_pipeline.trading.market.numbers import parse_numbers
from ml_pipeline.trading.market.resampling import BarForm, in_form
from ml_pipeline.trading.market.symbol_files import (
    files_of,
    follow_each_other,
    names_of,
    of_several_lengths,
    symbols_of,
)
from ml_pipeline.trading.market.tables import Faults, Table, read_table
from ml_pipeline.trading.market.timeframes import Timing, timeframe_ns
from ml_pipeline.trading.market.times import (
    EXPECTED_TIMES,
    AmbiguousTimesError,
    BarTime,
    ReadTimes,
    Times,
    join_clock,
    parse_times,
    usual_spacing,
)

if TYPE_CHECKING:
    import polars as pl


_PLAIN = Dialect()


class Reading(NamedTuple):
    """Arguments of `load_market`."""

    symbols: Sequence[str] | None = None
    bar_time: BarTime | None = None
    form: BarForm = BarForm()
    dialect: Dialect = Dialect()


def load_market(
    path: str | Path | Sequence[Path],
    *,
    symbols: Sequence[str] | None = None,
    bar_time: BarTime | None = None,
    form: BarForm | None = None,
    faults: Faults | None = None,
    name: str | None = None,
    dialect: Dialect = _PLAIN,
) -> MarketData:
    """The market in a file, in a folder with one or several files per symbol, or in a list of files.

    A CSV or Parquet file holds one asset, several in long format (a symbol column), or several in wide format
    (`BTC:close`). Quotes are columns bid and ask; feature_NAME is a feature. See `market.columns` and `market.times`
    for titles and times. Newest-first rows are sorted and an adjusted close adjusts prices, each with a notice. Any
    other problem raises UserError with file, row (data rows from 1), symbol and remedy.

    symbols: to read, in this order; None: all.
    bar_time: whether times mark the open or the close of bars. It matters if assets have bars of different lengths:
    each bar is placed at its close, so that a day is not known at its first hour.
    form: longer bars, a session, or split adjustment.
    faults: how invalid rows are handled; None refuses the first.
    name: the symbol of a file without one; None: the file name. dialect: the meaning of titles and dates.
    """
    files = files_of(Path(path)) if isinstance(path, str | Path) else path
    names = names_of(files)
    if symbols and len(files) > 1:  # other files in the folder need not be valid
        named = [own for own in symbols_of(files) if own.name in symbols]
        files = [file for own in named for file in own.files] if {own.name for own in named} == {*symbols} else files
    source = Path(path).name if isinstance(path, str | Path) else " and ".join(file.name for file in files)
    tables = ((read_table(file, dialect=dialect), name or names[file]) for file in files)
    return market_of_tables(tables, source, Reading(symbols, bar_time, form or BarForm(), dialect), faults or Faults())


def market_from_frame(
    frame: Any,
    *,
    symbols: Sequence[str] | None = None,
    name: str = "the frame",
    bar_time: BarTime | None = None,
    form: BarForm | None = None,
    faults: Faults | None = None,
    dialect: Dialect = _PLAIN,
) -> MarketData:
    """The market in a polars or pandas DataFrame with the columns of a `load_market` file; a pandas index is a column.

    Titles with several levels are joined: ("Close", "AAPL") becomes Close:AAPL. name: the frame's name in messages, and
    the symbol if the frame has none. Other arguments are those of `load_market`. Raises UserError as `load_market`,
    and if `frame` is not a DataFrame.
    """
    import polars as pl

    if not isinstance(frame, pl.DataFrame):
        frame = _of_pandas(frame)
    reading = Reading(symbols, bar_time, form or BarForm(), dialect)
    return market_of_tables([(Table(name, frame, 0, dialect), name)], name, reading, faults or Faults())


def _of_pandas(frame: Any) -> "pl.DataFrame":
    import polars as pl

    if not (hasattr(frame, "reset_index") and hasattr(frame, "columns")):
        raise UserError(
            f"A market is a path, a pandas or polars DataFrame, or MarketData, but got {type(frame).__name__}; "
            "for arrays, use market_from_arrays."
        )
    mere_numbers = frame.index.names == [None] and frame.index.dtype == np.int64
    table = frame if mere_numbers else frame.reset_index()
    return pl.DataFrame({_title(title): _plain_column(table[title]) for title in table.columns})


def _title(title: Any) -> str:
    return ":".join(str(part) for part in title if str(part)) if isinstance(title, tuple) else str(title)


def _plain_column(column: Any) -> Any:
    """A pandas column in a form that polars reads without pyarrow.

    Times with a time zone become UTC; midnights in that zone keep their date.
    """
    if getattr(column.dtype, "tz", None) is not None:
        wall = column.dt.tz_localize(None)
        is_days = bool((wall.dropna() == wall.dropna().dt.normalize()).all())
        column = wall if is_days else column.dt.tz_convert("UTC").dt.tz_localize(None)
    values = column.to_numpy()
    return values.tolist() if values.dtype == object else values


def market_of_tables(tables: Iterable[tuple[Table, str]], source: str, reading: Reading, faults: Faults) -> MarketData:
    """The market of (table, name) pairs; the symbol of a table without one is `name`."""
    assets: dict[str, Asset | Parts] = {}
    for asset in (asset for table, name in tables for asset in _assets_of(table, name, faults)):
        before = assets.get(asset.symbol)
        if before is not None and not follow_each_other(before.table.name, asset.table.name):
            raise UserError(f"{asset.symbol} is in {before.table.name} and in {asset.table.name}; keep one.")
        assets[asset.symbol] = asset if before is None else Parts.of(before, asset)
    found = paired(assets)
    files = [asset.table.name for asset in assets.values()]
    del assets
    for symbol in reading.symbols or ():
        if symbol not in found:
            why = of_several_lengths(symbol, files) or nearest(symbol, found)
            raise UserError(f'{source} has no symbol "{symbol}". {why}')
    # Each asset is released once it is read, and its table with the last one, so that a large file is in memory once.
    read = [read_asset(found.pop(symbol), faults) for symbol in reading.symbols or tuple(found)]
    read = [in_form(bars, reading.form, reading.bar_time or bars.bar_time or "open") for bars in read]
    read = align_bars(with_exchange_days(read), reading.bar_time)
    left_out = faults.sentences if faults.policy == "drop" else []
    market = _on_one_timeline(read, source, left_out)
    stamps = {reading.bar_time or bars.bar_time for bars in read}
    stamped: BarTime = "close" if "close" in stamps and "open" not in stamps else "open"
    length = timeframe_ns(reading.form.timeframe) if reading.form.timeframe else usual_spacing(market.times)
    return replace(market, timing=Timing(length, stamped, reading.form.clock))


def _on_one_timeline(read: Sequence[AssetBars], source: str, notices: list[str]) -> MarketData:
    times = _all_times([bars.times for bars in read])
    rows = [slice(None) if len(bars.times) == len(times) else np.searchsorted(times, bars.times) for bars in read]

    def together(columns: Sequence[NDArray[Any] | None], empty: Any) -> NDArray[Any]:
        if len(read) == 1 and columns[0] is not None:
            return columns[0][:, None]
        table = np.full((len(times), len(read)), empty)
        for column, (values, own) in enumerate(zip(columns, rows, strict=True)):
            if values is not None:
                table[own, column] = values
        return table

    names = dict.fromkeys(name for bars in read for name in bars.fields)
    fields = {name: together([bars.fields.get(name) for bars in read], np.nan) for name in names}
    return market_from_arrays(
        [bars.symbol for bars in read],
        times,
        fields["close"],
        open=fields["open"],
        high=fields["high"],
        low=fields["low"],
        volume=fields["volume"],
        half_spread=fields.get("half_spread"),
        columns={name: values for name, values in fields.items() if name.startswith(FEATURE_PREFIX)},
        outside=together([bars.outside for bars in read], False),
        copy=False,
        notices=list(dict.fromkeys([*(notice for bars in read for notice in bars.notices), *notices])),
        source=source,
    )


def _all_times(of_assets: Sequence[Times]) -> Times:
    """The union of the assets' times, in order."""
    longest = max(of_assets, key=len)
    if all(np.array_equal(times, longest) for times in of_assets):
        return longest
    return np.unique(np.concatenate(of_assets))


def _assets_of(table: Table, name: str, faults: Faults) -> Iterator[Asset]:
    """The assets of a table, or one named `name` if the table has no symbols; their cells are not parsed here."""
    layout = table.layout
    missing = [("price", "close"), ("time", "time")]
    missing = [each for each, there in zip(missing, (layout.fields, layout.time), strict=True) if not there]
    if missing:
        kinds = " and ".join(f"no {kind} column" for kind, _ in missing)
        expected = " and ".join("close (SYMBOL:close of several)" if each == "close" else each for _, each in missing)
        raise UserError(
            f"{table.name} has {kinds}; expected {expected}, but it has: {_listed(table.frame.columns)}; "
            f"{_remedy(table, [meaning for _, meaning in missing])}."
        )
    times = _times_of(table, layout, faults)
    known = ~np.isnat(times.utc)
    table = replace(table, frame=table.frame.drop(layout.time))  # the text of times is the largest part of most tables
    if layout.symbol is None:
        for symbol, fields in layout.fields.items():
            yield Asset(symbol or name, table, layout, fields, np.flatnonzero(known), times)
        return
    names = table.frame[layout.symbol].cast(str).str.strip_chars()
    blank = (names.is_null() | (names == "")).fill_null(True).to_numpy()
    if blank.any():
        faults.report(table, np.flatnonzero(blank), f"{layout.symbol} is empty; name the symbol or drop the row.")
    for symbol in names.filter(~blank).unique(maintain_order=True).to_list():
        rows = np.flatnonzero((names == symbol).fill_null(False).to_numpy() & known)
        yield Asset(symbol, table, layout, layout.fields[""], rows, times)


def _remedy(table: Table, meanings: Sequence[str]) -> str:
    """A remedy for missing meanings: a flag to paste, with the first column whose cells fit each meaning."""
    frame = table.frame
    if not table.has_titles:
        columns = " ".join(
            f"{name}={i}" for i, name in enumerate(("time", "open", "high", "low", "close", "volume"), 1)
        )
        return f"it has no header and no known layout; number its columns, as in --columns {columns}"
    found = {
        meaning: next(
            (title for title in frame.columns if title and _may_hold(meaning, frame[title].head(100))), "TITLE"
        )
        for meaning in meanings
    }
    named = " ".join(shlex.quote(f"{meaning}={title}") for meaning, title in sorted(found.items(), reverse=True))
    closes = found.get("close", "TITLE")
    wide = "" if closes == "TITLE" or is_usual(closes) else f", or rename the closes of symbols, as in {closes}:close"
    return f"if {'this column is' if len(found) == 1 else 'these columns are'} meant, pass --columns {named}{wide}"


def _may_hold(meaning: str, cells: "pl.Series") -> bool:
    try:
        times = not np.isnat(parse_times(cells, "ymd").utc).all()
    except AmbiguousTimesError:
        times = True
    return times if meaning == "time" else not times and not np.isnan(parse_numbers([cells])[0][0]).all()


def _times_of(table: Table, layout: Layout, faults: Faults) -> ReadTimes:
    """The time of every row; NaT, and a report, if it cannot be read."""
    columns = [table.frame[name] for name in layout.time]
    column = columns[0] if len(columns) == 1 else join_clock(*columns)
    try:
        zone = layout.zone
        times = parse_times(column, table.dialect.date_order, zone)
    except AmbiguousTimesError as error:
        raise UserError(
            f"{table.name}: a time like {error} can be read with the day first or the month first, and no row shows "
            "which; pass --date-order dmy or --date-order mdy."
        ) from error
    except UserError as error:
        raise UserError(f"{table.name}: {error}") from error
    if (unread := np.flatnonzero(np.isnat(times.utc))).size:
        cell = column[int(unread[0])]
        problem = "the time is empty" if cell in (None, "") else f'"{cell}" is not a time; expected {EXPECTED_TIMES}'
        if cell == layout.time[0]:
            problem = f'"{cell}" repeats the header, as in concatenated files'
        elif re.fullmatch(r"\d\d?:\d\d(:\d\d)?", str(cell)):
            problem = f"{cell} is a time of day without a date"
        alone = column.slice(int(unread[0]), 1)
        if zone is not None and not np.isnat(parse_times(alone, table.dialect.date_order or "ymd").utc[0]):
            problem = f'"{cell}" does not exist in {zone} because of daylight saving time, or there is no such zone'
        faults.report(table, unread, f"{problem}; fix or drop the row.")
    return times


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:12])
    return shown + (", ..." if len(columns) > 12 else "")


# With fewer bars, every step between two bars may be a gap.
_FEWEST_TO_TELL_SPACING = 4
# Bars are of different lengths if they differ by this factor; months have 28 to 31 days and count as one length.
_LONGER = 1.5
# Daily bars are at least this long, in ns; a day on which clocks change may have 23 hours.
_SHORTEST_DAY = 20 * 3_600 * 10**9


def align_bars(read: Sequence[AssetBars], bar_time: BarTime | None) -> list[AssetBars]:
    """The bars of the assets, with each long bar moved to the time of the shortest bar that closes with it.

    bar_time: whether times mark the open or the close of bars; None: as the column titles state. It does not matter if
    all bars have the same length; times then stay unchanged.
    Raises UserError if it matters and neither `bar_time` nor a column title states it.
    """
    spacings = [_spacing(bars.times) for bars in read]
    shortest = min((spacing for spacing in spacings if spacing is not None), default=None)
    if shortest is None:
        return list(read)
    long = [spacing is not None and spacing >= _LONGER * shortest for spacing in spacings]
    named = [bar_time or bars.bar_time for bars in read]
    if len({*named}) == 1 and not any(long):
        return list(read)
    if None in named:
        raise _ambiguous_bar_time(read, named, long)
    if "open" not in named:
        return list(read)
    return [
        _moved(bars, spacing or shortest, shortest, is_long=is_long, bar_time=name)
        for bars, spacing, is_long, name in zip(read, spacings, long, named, strict=True)
    ]


def with_exchange_days(read: Sequence[AssetBars]) -> list[AssetBars]:
    """The bars, dated by their exchange if they start at its midnights and all assets have bars of a day or longer.

    In UTC, a Monday that begins at midnight in Tokyo is a Sunday. If there are shorter bars, UTC decides which bars are
    known.
    """
    spacings = [_spacing(bars.times) for bars in read]
    if any(spacing is not None and spacing < _SHORTEST_DAY for spacing in spacings):
        return list(read)
    return [
        bars
        if bars.days is None
        else replace(
            bars, times=bars.days, notices=[*bars.notices, f"{bars.symbol}: bars keep the dates of their exchange"]
        )
        for bars in read
    ]


def _ambiguous_bar_time(read: Sequence[AssetBars], named: Sequence[BarTime | None], long: Sequence[bool]) -> UserError:
    """The error about the first asset with ambiguous times, and an asset for which it matters."""
    this = named.index(None)
    other = next(i for i in range(len(read)) if long[i] != long[this] or named[i] != named[this])
    why = "have another length" if long[other] != long[this] else f"are stamped at their {named[other]}"
    return UserError(
        f"It matters whether the times of {read[this].symbol} mark the open or the close of bars, because the bars of "
        f"{read[other].symbol} {why}; pass --bar-time open or --bar-time close."
    )


def _moved(bars: AssetBars, spacing: int, shortest: int, *, is_long: bool, bar_time: BarTime | None) -> AssetBars:
    """The bars, each at the opening time of the shortest bar that closes with it."""
    if bar_time == "open" and not is_long:
        return bars
    ends = bars.times if bar_time == "close" else _ends(bars.times, spacing)
    notices = bars.notices
    if is_long:
        notices = [*notices, f"{bars.symbol}: bars are longer than others and were moved to the times when they close"]
    return replace(bars, times=ends - np.timedelta64(shortest, "ns"), notices=notices)


def _spacing(times: NDArray[np.datetime64]) -> int | None:
    """The usual time between bars in ns, unaffected by stray bars and gaps; None if there are too few bars."""
    if len(times) < _FEWEST_TO_TELL_SPACING:
        return None
    return usual_spacing(times)


def _ends(times: NDArray[np.datetime64], spacing: int) -> NDArray[np.datetime64]:
    """When each bar ends: when the next begins or, before a gap and at the end, after the longest usual bar.

    Months have 28 to 31 days, and no bar may be known before its own end.
    """
    steps = np.diff(times).astype(np.int64)
    longest = steps[steps < _LONGER * spacing].max()
    return times + np.minimum(np.append(steps, longest), longest).astype("timedelta64[ns]")
