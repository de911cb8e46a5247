"""Features bar by bar, with the bits that `compute_features` gives on the same bars from the first one on.

A assets, D columns.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.features.indicators import (
    BarsOf,
    Feature,
    features_named,
    is_usable,
    make_features,
    require_longer,
    unusable,
    values_of,
)
from ml_pipeline.trading.features.streaming_formulas import RecentBars, StreamedFormula, streamed
from ml_pipeline.trading.market.bar_set import BarSet, MarketBuffer
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import Calendar, Timing, long_places, timeframe_ns

Mask = NDArray[np.bool_]


class _Column(NamedTuple):
    """A feature of each asset. place: its index among them. formula: None for a column of the data."""

    place: int
    feature: Feature
    formula: StreamedFormula | None


class FeatureStream:
    """Computes the features of one bar after the other, with a few operations for all assets together.

    names: of the features, as in the settings. source: the name of the data in messages. buffer: all bars so far.

    Built-in features cost the same at every bar. A user's function is called for each asset at each bar, with all
    bars so far: its cost grows with the numbers of bars and assets. It may fail before it has enough bars; the feature
    is then NaN.
    After an error, every `append` raises it again.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        names: Sequence[str],
        timing: Timing,
        calendar: Calendar | None = None,
        *,
        source: str = "the stream",
    ) -> None:
        self.symbols = tuple(symbols)
        self.buffer = MarketBuffer(symbols, timing, calendar, source=source)
        self._names = tuple(names)
        self._source = source
        self._made = False
        self._spared = False
        self._error: UserError | None = None
        self._listed = np.zeros(len(self.symbols), dtype=np.bool_)
        self.first_bar: int | None = None
        """The first bar, from 0, at which the features of some asset were seen complete; None: not yet."""
        self.failures: dict[str, str] = {}
        """Errors, by name, of the user's functions that failed at the latest bar and have not returned a value yet."""

    @property
    def columns(self) -> tuple[str, ...]:
        """D names: the features of each asset in turn, then those of time. Raises UserError before the first bar."""
        self._require_made()
        titles = [f"{symbol}:{feature.name}" for symbol in self.symbols for feature in self._of_assets]
        return (*titles, *(feature.name for feature in self._of_time))

    @property
    def n_asset_features(self) -> int:
        """The number of columns per asset."""
        self._require_made()
        return len(self._of_assets)

    def append(self, bars: BarSet, *, call_functions: bool = True) -> FloatArray:
        """The features at the close of these bars, float64 (D,), NaN during warm-up.

        call_functions: False skips the user's functions at bars whose features are not needed; their values are kept.
        Raises UserError for invalid bars, as `MarketBuffer`, without any change; and for a feature that fails or is not
        a number after its first value, as `compute_features`.
        """
        if self._error is not None:
            raise self._error
        self.buffer.append(bars)
        try:
            if not self._made:
                self._make(bars)
            with np.errstate(all="ignore"):  # values are checked
                self._update(bars)
                if self._recomputed and call_functions:
                    # After skipped bars, also for assets without a bar now.
                    self._recompute(self._listed if self._spared else bars.present)
                self._spared = not call_functions
        except UserError as error:
            self._error = error
            raise
        if self.first_bar is None and (~np.isnan(self._values).any(axis=1) & self._listed).any():
            self.first_bar = self.buffer.n_bars - 1
        row = np.empty(self._values.size + len(self._of_time))
        row[: self._values.size] = self._values.reshape(-1)
        nothing = np.empty(0)
        now = np.array([bars.time], dtype="datetime64[ns]")
        timeline = Bars(now, nothing, nothing, nothing, nothing, nothing, {})
        for i, feature in enumerate(self._of_time):
            row[self._values.size + i] = feature.compute(timeline)[0]
        return row

    def _make(self, bars: BarSet) -> None:
        n_assets, timing = len(self.symbols), self.buffer.timing
        features = features_named(self._names, tuple(bars.columns), source=self._source)
        self._of_assets = [feature for feature in features if not feature.of_time]
        self._of_time = [feature for feature in features if feature.of_time]
        own: list[_Column] = []
        longer: dict[str, list[_Column]] = {}
        self._recomputed: list[_Column] = []
        for place, feature in enumerate(self._of_assets):
            column = _Column(place, feature, streamed(feature, n_assets))
            if column.formula is None and not feature.name.startswith(FEATURE_PREFIX) and feature.where_absent is None:
                self._recomputed.append(column)
            elif feature.timeframe is None:
                own.append(column)
            else:
                length = timeframe_ns(feature.timeframe)
                require_longer(feature.name, length, timing, source=self._source)
                longer.setdefault(feature.timeframe, []).append(column)
        self._own = own
        self._recent = RecentBars(n_assets, _longest(own))
        self._longer = [
            (LongerBars(bars, timing, timeframe_ns(timeframe), longest=_longest(columns)), columns)
            for timeframe, columns in longer.items()
        ]
        self._values = np.full((n_assets, len(self._of_assets)), np.nan)
        self._had_value = np.zeros(self._values.shape, dtype=np.bool_)
        self._made = True

    def _update(self, bars: BarSet) -> None:
        fresh = bars.present
        self._listed |= fresh
        self._recent.append(bars.high, bars.low, bars.close, bars.volume, fresh=fresh)
        for place, feature, formula in self._own:
            if feature.where_absent is not None:
                self._values[:, place] = np.where(fresh, 1.0, feature.where_absent)
            else:
                values = column_of(bars, feature.name) if formula is None else formula.update(self._recent, fresh)
                np.copyto(self._values[:, place], values, where=fresh)
        self._check(self._own, fresh, np.full(len(fresh), bars.time, dtype="datetime64[ns]"))
        for longer, columns in self._longer:
            for known in longer.append(bars):
                for place, feature, formula in columns:
                    name = feature.name.partition("@")[0]
                    values = longer.columns[name] if formula is None else formula.update(longer.recent, known)
                    np.copyto(self._values[:, place], values, where=known)
                self._check(columns, known, longer.starts.astype("datetime64[ns]"))

    def _recompute(self, assets: Mask) -> None:
        market = self.buffer.market()
        for a in np.flatnonzero(assets).tolist():
            bars_of = BarsOf(market, a)
            for place, feature, _ in self._recomputed:
                try:
                    self._values[a, place] = value = values_of(feature, bars_of)[-1]
                except UserError as error:
                    if self._had_value[a, place]:
                        raise
                    self.failures[feature.name] = str(error)  # allowed before it has enough bars
                else:
                    self._had_value[a, place] |= not np.isnan(value)
                    self.failures.pop(feature.name, None)

    def _check(self, columns: Sequence[_Column], fresh: Mask, times: NDArray[np.datetime64]) -> None:
        """Raise UserError if a value of a fresh asset is not a number, although an earlier one was."""
        places = [column.place for column in columns]
        values = self._values[:, places]
        usable = is_usable(values)
        if usable.all():
            self._had_value[:, places] = True
            return
        had = self._had_value[:, places]
        for a, i in np.argwhere(~usable & ~(np.isnan(values) & ~had) & fresh[:, None]).tolist():
            raise unusable(columns[i].feature, self.symbols[a], float(values[a, i]), times[a])
        self._had_value[:, places] = had | usable

    def _require_made(self) -> None:
        if not self._made:
            raise UserError("The columns of features are unknown before the first bar; append one first.")


def _longest(columns: Sequence[_Column]) -> int:
    return max((column.formula.longest for column in columns if column.formula is not None), default=1)


def column_of(bars: BarSet, name: str) -> FloatArray:
    """A `feature_*` column of the bars, (A,); NaN if they do not have it."""
    values = bars.columns.get(name)
    return np.full(len(bars.close), np.nan) if values is None else values


class LongerBars:
    """Bars of `length` ns. recent: the completed ones. columns: the `feature_*` columns of the latest bar of each.

    first: the bars of the first `append`, which determine the number of assets and the columns.
    starts: int64 (A,), when the latest longer bar of each asset begins, in ns of UTC.
    """

    def __init__(self, first: BarSet, timing: Timing, length: int, *, longest: int) -> None:
        n_assets = len(first.close)
        self.recent = RecentBars(n_assets, longest)
        self.columns: dict[str, FloatArray] = {name: np.full(n_assets, np.nan) for name in first.columns}
        self.starts = np.zeros(n_assets, dtype=np.int64)
        self._timing = timing
        self._length = length
        self._key: NDArray[np.int64] | None = None
        self._begun = np.zeros(n_assets, dtype=np.bool_)
        self._ended = np.zeros(n_assets, dtype=np.bool_)
        self._high, self._low, self._close = (np.full(n_assets, np.nan) for _ in range(3))
        self._volumes: list[list[float]] = [[] for _ in range(n_assets)]

    def append(self, bars: BarSet) -> Iterator[NDArray[np.bool_]]:
        """Add the next bars; yield the assets whose longer bar they complete, once it is in `recent`.

        This may happen twice: a bar after a gap completes the longer bar before it, and may complete its own.
        """
        place = long_places(np.array([bars.time], dtype="datetime64[ns]"), self._timing, self._length)
        if self._key is None:
            self._key = np.zeros((len(self._begun), place.key.shape[1]), dtype=np.int64)
        present = bars.present
        begins = present & (~self._begun | self._ended | (self._key != place.key).any(axis=1))
        overtaken = begins & self._begun & ~self._ended
        if overtaken.any():
            self._finish(overtaken)
            yield overtaken
        self._add(bars, present, begins)
        self._key[present] = place.key
        self.starts[begins] = place.starts[0]
        self._begun |= present
        self._ended[present] = closes = bool(place.closes[0])
        if closes and present.any():
            self._finish(present)
            yield present

    def _add(self, bars: BarSet, present: NDArray[np.bool_], begins: NDArray[np.bool_]) -> None:
        self._high = np.where(begins, bars.high, np.where(present, np.maximum(self._high, bars.high), self._high))
        self._low = np.where(begins, bars.low, np.where(present, np.minimum(self._low, bars.low), self._low))
        self._close = np.where(present, bars.close, self._close)
        for name, before in self.columns.items():
            self.columns[name] = np.where(present, column_of(bars, name), before)
        for a in np.flatnonzero(begins).tolist():
            self._volumes[a] = []
        volumes = bars.volume.tolist()
        for a in np.flatnonzero(present).tolist():
            self._volumes[a].append(volumes[a])

    def _finish(self, which: NDArray[np.bool_]) -> None:
        """Complete the longer bars of these assets."""
        assets = np.flatnonzero(which)
        volume = np.full(len(which), np.nan)
        for a in assets.tolist():  # the order of additions is that of `together`
            volume[a] = np.add.reduceat(np.array(self._volumes[a]), [0])[0]
        self.recent.append(self._high, self._low, self._close, volume, fresh=which)


# Averages such as EMA and RSI start with a mean, whose effect fades over several spans.
_SPANS = 10
_LEAST = 500


def bars_to_warm_up(names: Sequence[str], *, window: int, length_ns: int) -> int:
    """Bars of `length_ns` that features and window need, enough for the start of averages to fade.

    The span of a user's own function is unknown, and columns of the data have none: they get the default number.

    >>> minute = 60 * 10**9
    >>> bars_to_warm_up(["rsi_14"], window=1, length_ns=minute)
    500
    >>> bars_to_warm_up(["rsi_14@1h"], window=4, length_ns=minute)
    8404
    """
    needed = 0
    for feature in (each for name in names for each in make_features(name)):
        longer = 1 if feature.timeframe is None else timeframe_ns(feature.timeframe) // length_ns
        needed = max(needed, _SPANS * feature.warm_up * max(longer, 1))
    return max(_LEAST, needed + window)
