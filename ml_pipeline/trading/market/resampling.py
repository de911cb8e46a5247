"""Change the bars of one asset: adjust them for stock splits, keep only a session, build longer bars."""

from dataclasses import replace
from typing import NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.asset_bars import PRICES, AssetBars
from ml_pipeline.trading.market.plausibility import find_splits, outside_range
from ml_pipeline.trading.market.timeframes import (
    Clock,
    Timing,
    long_bars,
    timeframe_ns,
    together,
)
from ml_pipeline.trading.market.times import BarTime, as_text, usual_spacing


class BarForm(NamedTuple):
    """Changes to the bars of a file.

    adjust_splits: divide the prices before each split that the file does not reflect; see `plausibility.find_splits`.
    timeframe: length of the bars to build, such as 5m, 1h or 1d. clock: the session, outside which bars are left out,
    and the time zone in which days begin; see `timeframes.make_clock`.
    """

    adjust_splits: bool = False
    timeframe: str | None = None
    clock: Clock = Clock()


def in_form(bars: AssetBars, form: BarForm, bar_time: BarTime) -> AssetBars:
    """The bars in this form. bar_time: whether their times mark the open or the close."""
    if form.adjust_splits:
        bars = with_splits_adjusted(bars)
    if form.clock.has_session:
        bars = in_session(bars, form.clock, bar_time)
    return resampled(bars, form.timeframe, form.clock, bar_time) if form.timeframe else bars


def in_session(bars: AssetBars, clock: Clock, bar_time: BarTime) -> AssetBars:
    """The bars that open within the session; bars of a day or longer are kept. Raises UserError if there are none."""
    timing = Timing(usual_spacing(bars.times), bar_time, clock)
    if timing.length >= clock.open_for:
        return bars
    inside = clock.days(timing.opens(bars.times))[1] < clock.open_for
    if inside.all():
        return bars
    if not inside.any():
        raise UserError(f"{bars.symbol} has no bar in the session; check --session and --timezone.")
    notice = f"{bars.symbol}: {counted(int((~inside).sum()), 'bar')} outside the session left out"
    return replace(
        bars,
        times=bars.times[inside],
        fields={name: values[inside] for name, values in bars.fields.items()},
        notices=[*bars.notices, notice],
        days=None if bars.days is None else bars.days[inside],
        outside=None if bars.outside is None else bars.outside[inside],
    )


def resampled(bars: AssetBars, timeframe: str, clock: Clock, bar_time: BarTime) -> AssetBars:
    """Bars of length `timeframe` built from shorter ones, without an unfinished last one; gaps stay gaps.

    Raises UserError if the bars are already longer, or if no bar is finished.
    """
    length, spacing = timeframe_ns(timeframe), usual_spacing(bars.times)
    if spacing == length:
        return bars
    if spacing > length:
        raise UserError(
            f"The bars of {bars.symbol} are longer than --timeframe {timeframe}; use a longer timeframe, or leave it "
            "out."
        )
    timing = Timing(spacing, bar_time, clock)
    made = long_bars(bars.times, timing, length, causal=False)
    fields = together(bars.fields, made)
    first = made.first
    n_finished = len(first) if made.closes[-1] else len(first) - 1
    if not n_finished:
        raise UserError(f"The bars of {bars.symbol} do not fill one bar of --timeframe {timeframe}; use more bars.")
    stamps = (made.starts if bar_time == "open" else made.ends)[first].astype("datetime64[ns]")
    notice = (
        f"{bars.symbol}: {len(bars.times):,} bars were combined into {n_finished:,} of {timeframe}; their times mark "
        f"the {bar_time}"
    )
    is_days = length >= timeframe_ns("1d") and bar_time == "open" and clock.zone is not None
    days = clock.days(timing.opens(bars.times[first]))[0][:n_finished].astype("datetime64[D]") if is_days else None
    fields = {name: values[:n_finished] for name, values in fields.items()}
    return AssetBars(
        bars.symbol,
        stamps[:n_finished],
        fields,
        bars.bar_time,
        [*bars.notices, notice],
        None if days is None else days.astype("datetime64[ns]"),
        None if bars.outside is None else outside_range(fields),
    )


def with_splits_adjusted(bars: AssetBars) -> AssetBars:
    """The bars with prices before each split divided by its ratio and volumes multiplied by it; a notice for each."""
    fields, notices = dict(bars.fields), list(bars.notices)
    for split in find_splits(fields["open"], fields["close"]):
        for name, factor in (*((price, 1 / split.ratio) for price in PRICES), ("volume", split.ratio)):
            fields[name] = fields[name].copy()
            fields[name][: split.row] *= factor
        notices.append(
            f"{bars.symbol}: the {counted(split.row, 'bar')} before {as_text(bars.times[split.row])} "
            f"{'was' if split.row == 1 else 'were'} adjusted for a {split} split: prices / {split.ratio:g}, volumes x "
            f"{split.ratio:g}"
        )
    return replace(bars, fields=fields, notices=notices)
