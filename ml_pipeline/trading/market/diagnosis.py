"""Find problems in market data and suggest a remedy for each, without changing the data.

T bars of one asset.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import counted, lasting
from ml_pipeline.trading.market.columns import FEATURE_PREFIX, Dialect, Source, is_time
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.numbers import parse_numbers
from ml_pipeline.trading.market.plausibility import OwnBars, far_returns, find_splits, severe_problems, wrong_ticks
from ml_pipeline.trading.market.tables import Table, head_of, read_table
from ml_pipeline.trading.market.timeframes import infer_calendar
from ml_pipeline.trading.market.times import as_text

# This many equal closes in a row mean that the feed stood still.
_STALE_BARS = 20
# A market with at least this many symbols was probably selected from a larger one.
_MANY = 5
# Most columns that a message names.
_MOST_COLUMNS = 24
# With fewer rows, any column may look like row numbers.
_FEWEST_ROWS = 5
# Longest closure over a weekend, and shortest one for a holiday.
_LONGEST_CLOSED = np.timedelta64(4 * 24, "h")
_LEAST_HOLIDAY = np.timedelta64(6, "h")
# A session boundary occurs at the same time of day on at least this share of the days, and on at least this many days.
_PART_OF_SESSIONS = 0.15
_FEW_SESSIONS = 3
_SECOND = np.timedelta64(1, "s")
_PLAIN = Dialect()
# There is no flag for this: indices and quoted markets have bars without volume.
_DROP_THEM = (
    "drop the bars without trades: download them without flats if the source can, as Dukascopy, or in pandas by "
    'frame[frame["Volume"] > 0]'
)
# First words of the remedy of a harmless finding.
NOTHING_TO_DO = "nothing to do"


class Finding(NamedTuple):
    """A problem of a symbol, the market or a file, and its remedy.

    severe: the problem makes results wrong, so training and reports show it as well.
    """

    symbol: str
    problem: str
    remedy: str
    severe: bool = False


def diagnose(market: MarketData, files: Sequence[Path] = (), dialect: Dialect = _PLAIN) -> list[Finding]:
    """Problems of the market, symbol by symbol, and of the files that it was loaded from."""
    findings = []
    for a, symbol in enumerate(market.symbols):
        bars = market.own_bars(a)
        findings += [Finding(symbol, *problem, severe=True) for problem in severe_problems(symbol, bars)]
        for problem, remedy in (
            *_gaps(bars.times, weekends_off=infer_calendar(bars.times).name == "weekdays"),
            *_outliers(bars),
            *_stale(bars.times, bars.close),
            *_zero_volume(market.volume[market.tradable[:, a], a]),
        ):
            findings.append(Finding(symbol, problem, remedy))
    findings += [Finding(market.source, *finding) for finding in _survivors(market)]
    for file in files:
        head = head_of(file, dialect)
        findings += [Finding(file.name, *finding) for finding in (*_adjusted(file, head), *_unread_columns(file, head))]
    return findings


def layouts_of(files: Sequence[Path], dialect: Dialect = _PLAIN) -> list[str]:
    """A sentence for each known file layout: the source, and what its times mean."""
    names: dict[Source, list[str]] = {}
    for file in files:
        if (source := head_of(file, dialect).source) is not None:
            names.setdefault(source, []).append(file.name)
    sentences = []
    for source, those in names.items():
        bars = "" if source.bar_time is None else f"when bars {source.bar_time}"
        times = ", ".join(filter(None, (bars, source.zone)))
        which = those[0] if len(those) == 1 else f"{len(those)} files"
        sentences.append(f"Layout of {which}: {source.name}{f'; times are {times}' if times else ''}.")
    return sentences


def _gaps(times: NDArray[np.datetime64], *, weekends_off: bool) -> Iterator[tuple[str, str]]:
    """A finding for each kind of gap: weekends, between sessions, holidays and missing bars."""
    if len(times) < 3:
        return
    steps = np.diff(times)
    usual = np.median(steps)
    gaps = np.flatnonzero(steps > 1.5 * usual)
    if not gaps.size:
        return
    kinds = _kinds_of_gaps(times, gaps, usual, weekends_off=weekends_off)
    for kind, words in (("weekend", "over weekends"), ("session", "between sessions"), ("holiday", "as on holidays")):
        those = gaps[kinds == kind]
        if those.size:
            up_to = "up to " if len(those) > 1 else ""
            longest = lasting(steps[those].max() / _SECOND)
            yield f"{counted(len(those), 'gap')} of {up_to}{longest} {words}", NOTHING_TO_DO
    missing = gaps[kinds == "missing"]
    if missing.size:
        worst = missing[np.argmax(steps[missing])]
        n_bars = int(np.sum(np.round(steps[missing] / usual)) - len(missing))
        yield (
            f"{counted(len(missing), 'gap')} of {counted(n_bars, 'missing bar')}, the longest of "
            f"{lasting(steps[worst] / _SECOND)} from {as_text(times[worst])} to {as_text(times[worst + 1])}",
            "add the missing bars; otherwise a return over a gap covers several bars",
        )


def _kinds_of_gaps(
    times: NDArray[np.datetime64], gaps: NDArray[np.int64], usual: np.timedelta64, *, weekends_off: bool
) -> NDArray[np.str_]:
    """The kind of each gap: "weekend", "session", "holiday" or "missing".

    A gap is between sessions if on many days a gap begins or ends at the same time of day.
    """
    day = np.timedelta64(1, "D")
    closed, opened = times[gaps] + usual, times[gaps + 1]
    lengths = opened - closed
    kinds = np.full(len(gaps), "missing", dtype="<U8")
    if usual < day:
        n_days = len(np.unique(times.astype("datetime64[D]")))
        often = max(_FEW_SESSIONS, n_days * _PART_OF_SESSIONS)
        for moments in (closed, opened):
            _, which, counts = np.unique(
                moments - moments.astype("datetime64[D]"), return_inverse=True, return_counts=True
            )
            regular = (counts >= often)[which] & (lengths < day)
            kinds[regular] = "session"
    if weekends_off:
        first = closed.astype("datetime64[D]")
        last = (opened - np.timedelta64(1, "ns")).astype("datetime64[D]")
        weekdays = np.busday_count(first, last + day)
        span = (last - first) / day + 1
        short = lengths <= _LONGEST_CLOSED
        kinds[short & (span > weekdays)] = "weekend"
        whole_days = lengths >= (day if usual >= day else _LEAST_HOLIDAY)
        kinds[short & (span == weekdays) & whole_days & (kinds == "missing")] = "holiday"
    return kinds


def _outliers(bars: OwnBars) -> Iterator[tuple[str, str]]:
    returns, far = far_returns(bars.close)
    sizes = np.abs(returns)
    ticks = wrong_ticks(bars.close)  # reported as severe, like splits
    splits = np.array([split.row for split in find_splits(bars.open, bars.close)], dtype=np.int64)
    far = np.setdiff1d(far, np.concatenate([ticks - 1, ticks, splits - 1]))
    back = far[:-1][np.diff(far) == 1]  # reversed by the next bar
    if far.size:
        worst = far[np.argmax(sizes[far])]
        kind = f", {len(back):,} of them reversed by the next bar" if back.size else ""
        yield (
            f"{counted(len(far), 'return')} {'is an outlier' if len(far) == 1 else 'are outliers'}{kind}; "
            f"the largest, {np.expm1(returns[worst]):.0%}, ends at {as_text(bars.times[worst + 1])}",
            "drop the row if it is a wrong tick, or use adjusted prices if it is a split",
        )


def _stale(times: NDArray[np.datetime64], close: FloatArray) -> Iterator[tuple[str, str]]:
    changes = np.flatnonzero(np.diff(close) != 0)
    edges = np.concatenate([[-1], changes, [len(close) - 1]])
    runs = np.diff(edges)
    if runs.max() >= _STALE_BARS:
        start = edges[np.argmax(runs)] + 1
        yield (
            f"the close does not change for up to {runs.max():,} bars, from {as_text(times[start])}",
            _DROP_THEM,
        )


def _zero_volume(volume: FloatArray) -> Iterator[tuple[str, str]]:
    n_zero = int((volume == 0).sum())
    if 0 < n_zero < len(volume):
        yield (
            f"{n_zero:,} of {len(volume):,} bars {'has' if n_zero == 1 else 'have'} no volume",
            f"orders fill in them as in other bars; if nothing could be traded then, {_DROP_THEM}",
        )
    elif n_zero:
        yield "no bar has a volume", "leave out features that use volume"


def _survivors(market: MarketData) -> Iterator[tuple[str, str]]:
    if len(market.symbols) >= _MANY and market.tradable[[0, -1]].all():
        yield (
            f"all {len(market.symbols)} symbols trade from the first bar to the last",
            "if they were selected because they still exist, results are too good: use the symbols of the first day",
        )


def _unread_columns(file: Path, head: Table) -> Iterator[tuple[str, str]]:
    """Columns that are not read: why some cannot be features, and how to observe the others."""
    layout = head.layout
    prices = [title for fields in layout.fields.values() for title in fields.values()]
    read = {*layout.time, layout.symbol, *prices}
    unread = [name for name in head.frame.columns if name not in read]
    if not unread:
        return
    frame = read_table(file, dialect=head.dialect).frame
    titles = [*prices, *unread]
    parsed = parse_numbers([frame[title] for title in titles])
    numbers = {title: values for title, (values, _) in zip(titles, parsed, strict=True)}
    useless = {title: _why_useless(title, numbers, prices) for title in unread}
    useful = [title for title in unread if not useless[title]]
    shown = ", ".join(f"{title or 'the first'}{useless[title]}" for title in unread[:_MOST_COLUMNS])
    more = f" and {counted(len(unread) - _MOST_COLUMNS, 'other')}" if len(unread) > _MOST_COLUMNS else ""
    names = " ".join(shlex.quote(f"{_feature_name(title)}={title}") for title in useful[:_MOST_COLUMNS])
    yield (
        f"{counted(len(unread), 'column')} not used: {shown}{more}",
        f"to observe {'it' if len(useful) == 1 else 'them'}, pass --columns {names} --features '{FEATURE_PREFIX}*', "
        "with other features if you like"
        if useful
        else NOTHING_TO_DO,
    )


def _why_useless(title: str, numbers: Mapping[str, FloatArray], prices: Sequence[str]) -> str:
    """Why a column cannot be a feature, in parentheses; empty if it can be one."""
    if is_time(title):
        return " (another time)"
    own = numbers[title]
    known = own[~np.isnan(own)]
    if not known.size:
        return " (no numbers)"
    if (known == known[0]).all():
        return " (constant)"
    if not title or (len(own) > _FEWEST_ROWS and (np.diff(own) == 1).all()):
        return " (row numbers)"
    same = next((price for price in prices if np.array_equal(numbers[price], own, equal_nan=True)), None)
    return "" if same is None else f" (equal to {same})"


def _feature_name(title: str) -> str:
    """
    >>> _feature_name("RSI (14)")
    'feature_rsi_14'
    """
    return FEATURE_PREFIX + (re.sub(r"\W+", "_", title.lower()).strip("_") or "own")


def _adjusted(file: Path, head: Table) -> Iterator[tuple[str, str]]:
    fields = head.layout.fields.get("", {})
    if {"adjusted", "close"} <= fields.keys():
        frame = read_table(file, dialect=head.dialect).frame
        (close, _), (adjusted, _) = parse_numbers([frame[fields[name]] for name in ("close", "adjusted")])
        known = ~(np.isnan(close) | np.isnan(adjusted))
        differ = int(np.sum(close[known] != adjusted[known]))
        if differ:
            yield (
                f"{fields['close']} differs from {fields['adjusted']} in {differ:,} of {int(known.sum()):,} rows",
                f"{NOTHING_TO_DO}: prices were multiplied by their ratio",
            )
