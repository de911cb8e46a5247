"""Finds problems in market data and suggests a remedy for each; it changes nothing.

T bars of one asset.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.calendar import infer_calendar
from ml_pipeline.trading.market.columns import FEATURE_PREFIX, find_layout, is_usual
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.numbers import parse_numbers
from ml_pipeline.trading.market.plausibility import OwnBars, far_returns, find_splits, severe_problems, wrong_ticks
from ml_pipeline.trading.market.tables import read_table, titles_of
from ml_pipeline.trading.market.times import as_text

# With this many equal closes in a row, the feed stood still.
_STALE_BARS = 20
# A market with at least this many symbols was selected from a larger one.
_MANY = 5
# What the remedy begins with where a finding is harmless.
NOTHING_TO_DO = "nothing to do"


class Finding(NamedTuple):
    """A problem of one symbol (or of the market, or a file), where it is, and what to do about it.

    severe: results are wrong, so training and reports say it too.
    """

    symbol: str
    problem: str
    remedy: str
    severe: bool = False


def diagnose(market: MarketData, files: Sequence[Path] = ()) -> list[Finding]:
    """The problems of the market, symbol by symbol, and of the files that it was loaded from."""
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
        titles = titles_of(file)
        findings += [Finding(file.name, *finding) for finding in (*_adjusted(file, titles), *_unread_columns(titles))]
    return findings


def _gaps(times: NDArray[np.datetime64], *, weekends_off: bool) -> Iterator[tuple[str, str]]:
    if len(times) < 3:
        return
    steps = np.diff(times)
    usual = np.median(steps)
    longest_closed = np.timedelta64(4 * 24, "h") if weekends_off else np.timedelta64(0, "h")
    gaps = np.flatnonzero(steps > 1.5 * usual)
    strange = gaps[steps[gaps] > longest_closed + usual]
    if closed := len(gaps) - len(strange):
        largest = steps[np.setdiff1d(gaps, strange)].max()
        yield (
            f"{counted(closed, 'gap')} of up to {_hours(largest)}, as weekends and holidays leave them",
            NOTHING_TO_DO,
        )
    if strange.size:
        worst = strange[np.argmax(steps[strange])]
        yield (
            f"{counted(len(strange), 'gap')}, the longest of {_hours(steps[worst])} from {as_text(times[worst])} to "
            f"{as_text(times[worst + 1])}",
            "add the missing bars, or keep in mind that a return over a gap is that of several bars",
        )


def _outliers(bars: OwnBars) -> Iterator[tuple[str, str]]:
    returns, far = far_returns(bars.close)
    sizes = np.abs(returns)
    ticks = wrong_ticks(bars.close)  # severe, as splits are
    splits = np.array([split.row for split in find_splits(bars.open, bars.close)], dtype=np.int64)
    far = np.setdiff1d(far, np.concatenate([ticks - 1, ticks, splits - 1]))
    back = far[:-1][np.diff(far) == 1]  # undone by the next bar
    if far.size:
        worst = far[np.argmax(sizes[far])]
        kind = f", {len(back):,} of them undone by the next bar" if back.size else ""
        yield (
            f"{counted(len(far), 'return')} {'is' if len(far) == 1 else 'are'} far out{kind}; "
            f"the largest, {np.expm1(returns[worst]):.0%}, ends at {as_text(bars.times[worst + 1])}",
            "check whether it is a wrong tick (drop the row) or a split (use adjusted prices)",
        )


def _stale(times: NDArray[np.datetime64], close: FloatArray) -> Iterator[tuple[str, str]]:
    changes = np.flatnonzero(np.diff(close) != 0)
    edges = np.concatenate([[-1], changes, [len(close) - 1]])
    runs = np.diff(edges)
    if runs.max() >= _STALE_BARS:
        start = edges[np.argmax(runs)] + 1
        yield (
            f"the close stands still for up to {runs.max():,} bars, from {as_text(times[start])}",
            "drop the bars without trades",
        )


def _zero_volume(volume: FloatArray) -> Iterator[tuple[str, str]]:
    n_zero = int((volume == 0).sum())
    if 0 < n_zero < len(volume):
        yield (
            f"{n_zero:,} of {len(volume):,} bars have no volume",
            "orders are filled there as anywhere; drop these bars if nothing could be traded",
        )
    elif n_zero:
        yield "there is no volume at all", "leave features of volume out"


def _survivors(market: MarketData) -> Iterator[tuple[str, str]]:
    if len(market.symbols) >= _MANY and market.tradable[[0, -1]].all():
        yield (
            f"all {len(market.symbols)} symbols trade from the first bar to the last",
            "if they were selected because they survived, results are too good: use the symbols of the first day",
        )


def _unread_columns(titles: Sequence[str]) -> Iterator[tuple[str, str]]:
    layout = find_layout(titles)
    read = {*layout.time, layout.symbol, *(title for fields in layout.fields.values() for title in fields.values())}
    unread = [name for name in titles if name not in read and not is_usual(name)]
    if unread:
        shown = ", ".join(unread[:6]) + (", ..." if len(unread) > 6 else "")
        yield (
            f"{counted(len(unread), 'column')} not used: {shown}",
            f"to use them as features, name them {FEATURE_PREFIX}NAME and train with --features {FEATURE_PREFIX}*",
        )


def _adjusted(file: Path, titles: Sequence[str]) -> Iterator[tuple[str, str]]:
    fields = find_layout(titles).fields.get("", {})
    if {"adjusted", "close"} <= fields.keys():
        frame = read_table(file).frame
        (close, _), (adjusted, _) = parse_numbers([frame[fields[name]] for name in ("close", "adjusted")])
        share = float(np.mean(close != adjusted))
        yield (
            f"{fields['close']} differs from {fields['adjusted']} in {share:.0%} of the rows",
            f"{NOTHING_TO_DO}: every price was multiplied by their ratio",
        )


def _hours(step: np.timedelta64) -> str:
    hours = step / np.timedelta64(1, "h")
    return f"{hours / 24:g} days" if hours >= 72 else f"{hours:g} hours"
