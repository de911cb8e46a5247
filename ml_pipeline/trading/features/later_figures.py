"""Find columns that follow a figure of later bars in rank: of the next N bars, the rest of a day, the next week.

A correlation needs many independent bars, and forty windows of 60 days are few. But a column that was computed from
later bars follows their figure at every bar, as no figure of the bars so far does, and that shows in few windows.
M sampled bars, K figures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.foresight import Foresight
from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.features.innovations import Innovations, ranks
from ml_pipeline.trading.features.period_ends import Periods
from ml_pipeline.trading.market.data import FloatArray

Rows = NDArray[np.int64]

_N_SAMPLES = 512
_FEWEST_SAMPLES = 100
# Every horizon up to 25 bars, then horizons 4 % apart, close enough for columns between two of them, and round numbers.
# The data must hold five windows of a horizon.
_HORIZONS = sorted(
    {*range(1, 26), *(round(25 * 1.04**k) for k in range(104)), 60, 120, 240, 250, 252, 260, 390, 480, 780, 1440}
)
_FEWEST_WINDOWS = 5
# Rank correlation as a fraction of the largest that the column's equal values allow, and its standard errors for as
# many bars as there are windows.
_FOLLOWS = 0.95
_STANDARD_ERRORS = 7.0
# The best figure of the bars so far must miss this many times as much.
_TIMES_BETTER = 4.0
# Columns that begin in the same twentieth of the data use the same figures.
_N_BEGINNINGS = 20
# Bits of a column's runs of equal values; a match with fewer may be chance.
_FEWEST_BITS = 30.0
# The variance of a figure's ranks, as a fraction of that without equal values.
_FEWEST_DIFFERENT = 0.9
# Of rank correlations in single precision.
_ROUNDING = 1e-5
# Fraction of the sampled bars at which a column must be known.
_FEWEST_KNOWN = 0.9


@dataclass(frozen=True, eq=False)
class _Figures:
    """Figures at sampled bars.

    ranked, ordered: float32 (K, M), ranks of the figures with mean 0, in order of time and sorted. names: of the
    figures. windows: (K,), how many windows of its length the data hold.
    """

    rows: Rows
    names: list[str]
    ranked: NDArray[np.float32]
    ordered: NDArray[np.float32]
    windows: FloatArray


class LaterFigures:
    """Figures of later bars of one asset at sampled bars, computed when the first column needs them."""

    def __init__(self, known: Innovations, every: Sequence[Periods]) -> None:
        self._bars = known.bars
        self._every = every
        self._is_news = "return" in known.of  # otherwise the past explains all later bars
        self._made: dict[int, list[_Figures]] = {}
        self._past: dict[_Figures, _Figures] = {}

    def told(self, values: FloatArray) -> Foresight | None:
        """The figure of later bars that a column, (T,), follows; None if there is none."""
        there = np.isfinite(values)
        if not self._is_news or not there.any():
            return None
        step = max(len(values) // _N_BEGINNINGS, 1)
        begin = -(-int(np.argmax(there)) // step) * step
        if begin not in self._made:
            self._made[begin] = [*self._figures(begin)]
        for figures in self._made[begin]:
            if found := self._followed(values, figures):
                return found
        return None

    def _figures(self, begin: int) -> Iterator[_Figures]:
        n = len(self._bars.close)
        horizons = [h for h in _HORIZONS if h * _FEWEST_WINDOWS <= n - begin]
        if horizons:
            rows = _sample(np.arange(max(begin, 1), n - horizons[-1]))
            windows = {f"the next {h} bars" if h > 1 else "the next bar": (rows + 1, rows + 1 + h) for h in horizons}
            if len(rows) >= _FEWEST_SAMPLES:
                yield _ranked(self._bars, rows, windows, [(n - begin) / h for h in horizons])
        for periods in self._every:
            start = np.append(periods.first, n)
            n_periods = len(periods.first)
            first, last = int(np.searchsorted(periods.first, begin)) + 1, n_periods - 2
            if last - first < _FEWEST_WINDOWS:
                continue
            rows = np.arange(start[first], start[last])
            rows = _sample(rows[start[periods.of[rows] + 1] > rows + 1])  # bars with later bars in their period
            of = periods.of[rows]
            windows = {
                f"the rest of the {periods.name}": (rows + 1, start[of + 1]),
                f"the {periods.name} from the bar on": (rows, start[of + 1]),
                f"the whole {periods.name}": (start[of], start[of + 1]),
                f"the next {periods.name}": (start[of + 1], start[of + 2]),
            }
            if len(rows) >= _FEWEST_SAMPLES:
                yield _ranked(self._bars, rows, windows, [last - first] * len(windows))

    def _followed(self, values: FloatArray, figures: _Figures) -> Foresight | None:
        told, close = values[figures.rows], self._bars.close[figures.rows]
        there = np.isfinite(told)
        if there.mean() < _FEWEST_KNOWN:
            return None
        told = np.where(there, told, np.median(told[there]))
        if _bits(told) < _FEWEST_BITS:
            return None
        forms = _ranks(np.vstack([*_forms(told, close)])).T
        agreed = _agreement(forms, figures)
        agreed[agreed < _enough(figures.windows)[:, None]] = 0.0
        best = agreed.argmax(axis=0)
        for column, k in enumerate(best):
            reached = float(agreed[k, column])
            if reached == 0:
                continue
            if figures not in self._past:
                self._past[figures] = self._of_the_past(figures.rows)
            by_the_past = float(_agreement(forms[:, column : column + 1], self._past[figures]).max())
            if 1 - by_the_past > _TIMES_BETTER * (1 - reached) + _ROUNDING:
                measure = (
                    f"follows with a rank correlation of {reached:.3f} (of no earlier bars more than {by_the_past:.3f})"
                )
                return Foresight(True, measure, figures.names[k], None)
        return None

    def _of_the_past(self, rows: Rows) -> _Figures:
        """The same figures of the bars so far, and the number of the bar, the time of the day and the price."""
        bars = self._bars
        windows = {f"{h}": (np.maximum(rows + 1 - h, 0), rows + 1) for h in _HORIZONS if h < len(bars.close) // 2}
        since = bars.times[rows].astype("datetime64[ns]").astype(np.int64)
        more = [rows, since % 86_400_000_000_000, since % 3_600_000_000_000, bars.close[rows]]
        for periods in self._every:
            of = periods.of[rows]
            first, before = periods.first[of], periods.first[np.maximum(of - 1, 0)]
            windows |= {f"{periods.name} so far": (first, rows + 1), f"{periods.name} before": (before, first)}
            more.append(rows - first)
        return _ranked(bars, rows, windows, [1] * len(windows), more)


def _sample(rows: Rows) -> Rows:
    if len(rows) <= _N_SAMPLES:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, _N_SAMPLES, replace=False))


def _bits(told: FloatArray) -> float:
    _, counts = np.unique(told, return_counts=True)
    share = counts / len(told)
    return float((1 + np.count_nonzero(np.diff(told))) * -(share * np.log2(share)).sum())


def _enough(windows: FloatArray) -> FloatArray:
    """The rank correlation that this many windows must reach, by Fisher's transformation, (K,); above 1: too few."""
    free = windows - 3
    enough = np.maximum(np.tanh(_STANDARD_ERRORS / np.sqrt(np.maximum(free, 1e-9))), _FOLLOWS)
    return np.where(free > 0, np.minimum(enough, 1 - _ROUNDING), 2.0)


def _forms(told: FloatArray, close: FloatArray) -> Iterator[FloatArray]:
    """The column, and its ratios to the price now, in case it is a distance in money or a price."""
    yield told
    if len(np.unique(told)) > 2:
        yield told / close
        if told.min() > 0:
            yield np.log(told / close)


def _agreement(forms: FloatArray, figures: _Figures) -> FloatArray:
    """Absolute rank correlations of forms, ranks (M, F), with figures: (K, F)."""
    forms = forms.astype(np.float32)
    most = figures.ordered @ np.sort(forms, axis=0)
    agreed: FloatArray = np.abs(figures.ranked @ forms) / np.maximum(most, 1e-3)
    # A figure that hardly varies, such as a gap from close to open that is mostly 0, agrees with any column by chance.
    n = forms.shape[0]
    agreed[(figures.ordered**2).sum(axis=1) < _FEWEST_DIFFERENT * n * (n**2 - 1) / 12] = 0.0
    return agreed


def _ranked(
    bars: Bars,
    rows: Rows,
    windows: dict[str, tuple[Rows, Rows]],
    n_windows: Sequence[float],
    more: Sequence[NDArray[np.generic]] = (),
) -> _Figures:
    starts = np.column_stack([start for start, _ in windows.values()])
    stops = np.column_stack([stop for _, stop in windows.values()])
    made = _of_windows(bars, bars.close[rows][:, None], starts, np.maximum(stops, starts + 1))
    names = [f"{figure} of {window}" for figure in made for window in windows]
    ranked = _ranks(np.vstack([*(figure.T for figure in made.values()), *more])).astype(np.float32)
    return _Figures(rows, names, ranked, np.sort(ranked, axis=1), np.tile(np.asarray(n_windows, float), len(made)))


def _of_windows(bars: Bars, now: FloatArray, start: Rows, stop: Rows) -> dict[str, FloatArray]:
    """Figures of the bars from `start` to before `stop`, (M, W) each. now: (M, 1), the price at the bar."""
    before, end = bars.close[np.maximum(start - 1, 0)], bars.close[stop - 1]
    high, low = _extreme(bars.high, start, stop, np.maximum), _extreme(bars.low, start, stop, np.minimum)
    spread = np.maximum(high - low, 1e-12 * now)
    count = stop - start
    prices = bars.close / bars.close.mean()
    mean = _sum(prices, start, stop) / count
    deviation = np.sqrt(np.maximum(_sum((prices - 1) ** 2, start, stop) / count - (mean - 1) ** 2, 0.0))
    mean = mean * bars.close.mean()
    returns = np.diff(np.log(bars.close), prepend=np.log(bars.close[:1]))
    average = _sum(returns, start, stop) / count
    volatility = np.sqrt(np.maximum(_sum(returns**2, start, stop) / count - average**2, 0.0))
    volume = _sum(bars.volume, start, stop)
    figures = {
        "the close": np.log(end / now),
        "the first open": np.log(bars.open[start] / now),
        "the close before": np.log(before / now),
        "the high": np.log(high / now),
        "the low": np.log(low / now),
        "the range": np.log(high / low),
        "the range over the price": (high - low) / now,
        "the place of the price in the range": (now - low) / spread,
        "the place of the close in the range": (end - low) / spread,
        "the return": np.log(end / before),
        "the return over the range": (end - before) / spread,
        "the mean close": np.log(mean / now),
        "the deviation from the mean close": (now - mean) / np.maximum(deviation * bars.close.mean(), 1e-9 * now),
        "the volatility": volatility,
        "the return over the volatility": average / np.maximum(volatility, 1e-12),
        "the volume per bar": volume / count,
    }
    if bars.volume.min() >= 0 and bars.volume.max() > 0:
        traded = _sum(bars.close * bars.volume, start, stop)
        figures["the VWAP"] = np.log(np.where(volume > 0, traded / np.where(volume > 0, volume, 1.0), now) / now)
    return figures


def _sum(values: FloatArray, start: Rows, stop: Rows) -> FloatArray:
    total = np.concatenate([[0.0], np.cumsum(values)])
    made: FloatArray = total[stop] - total[start]
    return made


def _extreme(values: FloatArray, start: Rows, stop: Rows, of: np.ufunc) -> FloatArray:
    """The maximum or minimum of the values from start to before stop: of two spans of 2^k bars, which may overlap."""
    made = np.empty(start.shape)
    level = np.log2(stop - start).astype(np.int64)
    spans = values.copy()
    for k in range(int(level.max()) + 1):
        here = level == k
        made[here] = of(spans[start[here]], spans[stop[here] - (1 << k)])
        spans[: -(1 << k)] = of(spans[: -(1 << k)], spans[1 << k :])
    return made


def _ranks(values: FloatArray) -> FloatArray:
    """Ranks of each row, (K, M), with mean 0."""
    return np.array([ranks(row) for row in values]) - values.shape[1] / 2
