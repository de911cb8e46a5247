"""Check columns with one value per hour, day, week or month: does the value contain the end of its period?

Such a column is honest if its value was known when its period began. A value of the whole period, joined to the bars by
date, is better explained by the end of the period than by its first bar and earlier periods.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.foresight import Foresight, above
from ml_pipeline.trading.features.innovations import Innovations, centred_ranks, lagged, residuals
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import Timing

_HOUR = 3_600 * 10**9
_FEWEST_PERIODS = 5
# Fewest periods for a correlation without the effect of the past.
_FEWEST_FOR_CORRELATION = 15
_FEWEST_BARS = 2.5
# A column has one value per period if it changes at the start of at least this fraction of the periods, and within
# periods at most twice for a hundred of these changes.
_MOST_CHANGES_WITHIN = 0.02
_FEWEST_CHANGES = 0.15
# Probability of a correlation this large for an honest column, for each of about twelve tests of a column.
_UNLIKELY_CHANCE, _IMPOSSIBLE_CHANCE = 1e-6, 1e-9
# Honest forecasts of returns stay far below. Implied volatility and calendars predict some of range and volume.
_UNLIKELY = {"return": 0.35, "range": 0.6, "volume": 0.6}
_IMPOSSIBLE = {"return": 0.5, "range": 0.85, "volume": 0.85}
# A value is a figure of its period if a linear fit to that figure leaves at most this fraction of its variance, and a
# fit to any figure known earlier leaves a hundred times as much.
_ROUNDING = 1e-6
_MORE_THAN_ROUNDING = 100.0


@dataclass(frozen=True, eq=False)
class Periods:
    """P periods of the bars of an asset. of: (T,), the period of each bar. first: (P,), its first bar.

    ahead: by target, (P,): the figures after the first bar, with innovations for returns. before: (P, K), information
    at the close of the first bar. figures: by name, (P,), of whole periods. known_figures: of first bars and earlier
    periods.
    """

    name: str
    of: NDArray[np.int64]
    first: NDArray[np.int64]
    ahead: Mapping[str, FloatArray]
    before: FloatArray
    figures: Mapping[str, FloatArray]
    known_figures: Mapping[str, FloatArray]


def periods_of(known: Innovations, timing: Timing) -> list[Periods]:
    """The hours, days, weeks, months and quarters, if there are at least five with several bars each."""
    bars = known.bars
    days, since_opening, _ = timing.clock.days(timing.opens(bars.times))
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    keys = {
        "hour": days * 24 + since_opening // _HOUR,
        "four hours": days * 6 + since_opening // (4 * _HOUR),
        "day": days,
        "week": (days + 3) // 7,
        "month": months,
        "quarter": months // 3,
    }
    found = []
    for name, key in keys.items():
        starts = np.flatnonzero(np.diff(key, prepend=key[:1] - 1) != 0)
        if len(starts) >= _FEWEST_PERIODS and len(key) >= _FEWEST_BARS * len(starts):
            found.append(_periods(name, known, starts))
    return found


def told_of_period(values: FloatArray, known: Innovations, every: list[Periods]) -> Foresight | None:
    """The worst excess of a column, (T,), about the ends of its periods; None if it has no period or no excess."""
    worst: Foresight | None = None
    prices = np.log(known.bars.close)
    for form in _constant_forms(values, known.bars.close):
        periods = _its_periods(form, every)
        if periods is None:
            continue
        for found in (*_copies(form, periods), *_correlations(form, prices, periods)):
            if found.impossible:
                return found
            worst = worst or found
    return worst


def _constant_forms(values: FloatArray, close: FloatArray) -> Iterator[FloatArray]:
    """The values, and forms that are constant in a period if they are a distance to its end: money, log or ratio."""
    prices = np.log(close)
    yield from (values, close + values, close - values, prices + values, prices - values)
    least = np.nanmin(values, initial=np.inf)
    for ratio in (values, values + 1) if least > 0 else (values + 1,) if least > -1 else ():
        yield from (prices + np.log(ratio), prices - np.log(ratio))


def _periods(name: str, known: Innovations, first: NDArray[np.int64]) -> Periods:
    bars = known.bars
    end = np.append(first[1:], len(bars.close))
    last, second = end - 1, np.minimum(first + 1, end - 1)
    high, low = np.maximum.reduceat(bars.high, first), np.minimum.reduceat(bars.low, first)
    volume = np.add.reduceat(bars.volume, first)
    opened, closed, begun = bars.open[first], bars.close[last], bars.close[first]
    before = np.concatenate([opened[:1], closed[:-1]])
    # A period of one bar has nothing after its first bar.
    rows = np.arange(len(bars.close))
    later = ~np.isin(rows, first[second > first])
    high_ahead = np.maximum.reduceat(np.where(later, bars.high, bars.close), first)
    low_ahead = np.minimum.reduceat(np.where(later, bars.low, bars.close), first)
    volume_ahead = volume - bars.volume[first]
    ahead = {"range": np.log(high_ahead / low_ahead), "volume": volume_ahead}
    if "return" in known.of:  # else the past explains all of it
        ahead["return"] = np.add.reduceat(known.moves, first) - known.moves[first]
    whole = {
        "close": closed,
        "log close": np.log(closed),
        "high": high,
        "log high": np.log(high),
        "low": low,
        "log low": np.log(low),
        "range": high - low,
        "log range": np.log(high / low),
        "range of close": (high - low) / closed,
        "range of open": (high - low) / opened,
        "log return": np.log(closed / before),
        "return": closed / before - 1,
        "log return since open": np.log(closed / opened),
        "return since open": closed / opened - 1,
        "change": closed - before,
        "change since open": closed - opened,
        "middle": (high + low + closed) / 3,
        "volume": volume,
        "log volume": np.log(volume + 1),
        "mean close": np.add.reduceat(bars.close, first) / (end - first),
        "VWAP": np.add.reduceat(bars.close * bars.volume, first) / np.maximum(volume, 1e-300),
    }
    figures = {f"{figure} before": np.concatenate([made[:1], made[:-1]]) for figure, made in whole.items()}
    figures |= {
        "open": opened,
        "first close": begun,
        "gap": np.log(opened / before),
        "first volume": bars.volume[first],
    }
    figures |= {"first high": bars.high[first], "first low": bars.low[first], "number": np.arange(len(first)) * 1.0}
    return Periods(
        name, np.repeat(np.arange(len(first)), end - first), first, ahead, _before(ahead, figures), whole, figures
    )


def _before(ahead: Mapping[str, FloatArray], figures: Mapping[str, FloatArray]) -> FloatArray:
    """Inputs of honest forecasts of a period: its first bar, and returns, ranges and volumes of earlier periods."""
    columns = [figures["gap"], np.log(figures["first close"] / figures["open"]), figures["first volume"]]
    columns.append(np.log(figures["first high"] / figures["first low"]))
    n = len(figures["gap"])
    for made in ahead.values():
        ranked = centred_ranks(made)
        columns.append(lagged(ranked, 1))
        if n >= 4 * _FEWEST_FOR_CORRELATION:
            columns += [lagged(ranked, 2), *(lagged(_mean(ranked, span), 1) for span in (5, 20))]
    return np.column_stack([centred_ranks(column) for column in columns])


def _mean(values: FloatArray, span: int) -> FloatArray:
    return np.convolve(values, np.ones(span) / span)[: len(values)]


def _its_periods(values: FloatArray, every: list[Periods]) -> Periods | None:
    """The periods at whose starts the values change most often, if they hardly change within them; longer ones win."""
    known = np.isfinite(values)
    known[1:] &= known[:-1]
    known[:1] = False
    changed = np.zeros(len(values), dtype=bool)
    changed[1:] = np.abs(np.diff(values)) > 1e-9 * (1 + np.abs(values[1:]))
    best, best_share = None, _FEWEST_CHANGES
    for periods in every:
        starts = np.zeros(len(values), dtype=bool)
        starts[periods.first] = True
        at_starts, within = (changed & known & starts).sum(), (changed & known & ~starts).sum()
        share = at_starts / max(known[starts].sum(), 1)
        if within <= _MOST_CHANGES_WITHIN * at_starts and share >= best_share:
            best, best_share = periods, share
    return best


def _copies(values: FloatArray, periods: Periods) -> Iterator[Foresight]:
    """The excess of a value that is a figure of its whole period, up to scale and rounding."""
    told = values[periods.first]
    inner = np.isfinite(told)
    inner[[0, -1]] = False  # the last period may not be over, the first not begun
    told = told[inner]
    if len(np.unique(told)) < max(_FEWEST_PERIODS - 1, 4):
        return
    left = {name: _left_by_line(told, figure[inner]) for name, figure in periods.figures.items()}
    name = min(left, key=lambda each: left[each])
    if left[name] > _ROUNDING:
        return
    known = min(_left_by_line(told, figure[inner]) for figure in periods.known_figures.values())
    if known > _MORE_THAN_ROUNDING * left[name]:
        yield Foresight(True, "is", f"the {name} of the {periods.name} from its first bar on", None)


def _left_by_line(told: FloatArray, figure: FloatArray) -> float:
    """The fraction of the variance that a linear fit leaves; 1 if the figure does not vary."""
    if not np.ptp(figure) > 0:
        return 1.0
    slope, _ = np.polyfit(x := figure - figure.mean(), y := told - told.mean(), 1)
    return float(((y - slope * x) ** 2).sum() / (y**2).sum())


def _correlations(values: FloatArray, prices: FloatArray, periods: Periods) -> Iterator[Foresight]:
    told = values[periods.first]
    known = np.isfinite(told)
    known[-1] = False
    if known.sum() < _FEWEST_FOR_CORRELATION or not np.ptp(told[known]) > 0:
        return
    begin = int(np.argmax(known))
    rows = slice(begin, len(told) - 1)
    told = np.where(known, told, told[begin])[rows]
    before, n = periods.before[rows], len(told)
    for form in (told, np.diff(told, prepend=told[0]), *_over_price(told, prices[periods.first][rows])):
        ranked = centred_ranks(form)
        regressors = [*before.T, np.ones(n), lagged(ranked, 1), lagged(ranked, 2)]
        own = residuals(ranked, regressors)
        free = n - len(regressors) - 2
        if own.var() < 1e-6 or free < _FEWEST_FOR_CORRELATION // 2:
            continue
        for target, ahead in periods.ahead.items():
            if not np.ptp(ahead[rows]) > 0:
                continue
            rest = residuals(centred_ranks(ahead[rows]), regressors)
            if rest.var() < 1e-6:
                continue
            correlation = float(np.corrcoef(own, rest)[0, 1])
            # Fisher's transformation; its normal tail is accurate enough at these sizes.
            deviations = math.atanh(min(abs(correlation), 1 - 1e-12)) * math.sqrt(max(free - 1, 1))
            chance = math.erfc(deviations / math.sqrt(2))
            if chance < _UNLIKELY_CHANCE and abs(correlation) >= _UNLIKELY[target]:
                impossible = chance < _IMPOSSIBLE_CHANCE and abs(correlation) >= _IMPOSSIBLE[target]
                shown = above(correlation, _UNLIKELY[target])
                measure = f"has, at the first bar of a {periods.name}, a rank correlation of {shown} with"
                yield Foresight(impossible, measure, f"the {target} of the rest of it", _UNLIKELY[target])


def _over_price(told: FloatArray, price: FloatArray) -> list[FloatArray]:
    """The distance of a level from the first close of the period, if it is a level of prices."""
    if told.min() <= 0:
        return []
    distance = np.log(told) - price
    return [distance] if np.abs(distance).max() < 1 else []
