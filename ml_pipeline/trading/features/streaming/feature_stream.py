"""Features bar by bar, with the bits that `compute_features` gives on the same bars from the first one on.

A assets, D columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.features.indicators import Feature, features_named, is_usable, unusable, values_of
from ml_pipeline.trading.features.own_bars import BarsOf, require_longer
from ml_pipeline.trading.features.streaming.formulas import StreamedFormula, streamed
from ml_pipeline.trading.features.streaming.longer_bars import LongerBars, column_of
from ml_pipeline.trading.features.streaming.recent_bars import RecentBars
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.calendar import Calendar
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.tape import MarketTape
from ml_pipeline.trading.market.timeframes import Timing, timeframe_ns

Mask = NDArray[np.bool_]


class _Column(NamedTuple):
    """A feature of each asset. place: among them. formula: None for a column of the data."""

    place: int
    feature: Feature
    formula: StreamedFormula | None


class FeatureStream:
    """Takes bars one after the other and gives their features: a few operations for all assets together.

    names: of the features, as in the settings. source: the name of the data in messages. tape: all bars so far.

    Built-in features cost the same at every bar. A function of the user's is called anew for each asset at each bar,
    with all bars so far: its cost grows with them, and with the number of assets. It may fail before it has enough
    bars, and counts as NaN there.
    After an error there are no further values: every `append` raises it again.
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
        self.tape = MarketTape(symbols, timing, calendar, source=source)
        self._names = tuple(names)
        self._source = source
        self._made = False
        self._spared = False
        self._error: UserError | None = None
        self._listed = np.zeros(len(self.symbols), dtype=np.bool_)
        self.first_bar: int | None = None
        """The first bar, from 0, at which the features of some asset were seen complete; None: not yet."""
        self.failures: dict[str, str] = {}
        """The user's functions that failed at the latest bar and have given no value yet, and how."""

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

        call_functions: False spares the user's functions at bars whose features nobody needs: theirs stay as they were.
        Raises UserError for bars that cannot be used, as `MarketTape`, which changes nothing; and for a feature that
        fails or is no number after its first value, as `compute_features`.
        """
        if self._error is not None:
            raise self._error
        self.tape.append(bars)
        try:
            if not self._made:
                self._make(bars)
            with np.errstate(all="ignore"):  # values are checked
                self._update(bars)
                if self._recomputed and call_functions:
                    # After bars that were spared, also those of assets that have no bar now.
                    self._recompute(self._listed if self._spared else bars.present)
                self._spared = not call_functions
        except UserError as error:
            self._error = error
            raise
        if self.first_bar is None and (~np.isnan(self._values).any(axis=1) & self._listed).any():
            self.first_bar = self.tape.n_bars - 1
        row = np.empty(self._values.size + len(self._of_time))
        row[: self._values.size] = self._values.reshape(-1)
        nothing = np.empty(0)
        now = np.array([bars.time], dtype="datetime64[ns]")
        timeline = Bars(now, nothing, nothing, nothing, nothing, nothing, {})
        for i, feature in enumerate(self._of_time):
            row[self._values.size + i] = feature.compute(timeline)[0]
        return row

    def _make(self, bars: BarSet) -> None:
        n_assets, timing = len(self.symbols), self.tape.timing
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
        market = self.tape.market()
        for a in np.flatnonzero(assets).tolist():
            bars_of = BarsOf(market, a)
            for place, feature, _ in self._recomputed:
                try:
                    self._values[a, place] = value = values_of(feature, bars_of)[-1]
                except UserError as error:
                    if self._had_value[a, place]:
                        raise
                    self.failures[feature.name] = str(error)  # as it may before it has enough bars
                else:
                    self._had_value[a, place] |= not np.isnan(value)
                    self.failures.pop(feature.name, None)

    def _check(self, columns: Sequence[_Column], fresh: Mask, times: NDArray[np.datetime64]) -> None:
        """Raise UserError where a value of an asset that is fresh is no number, though it has had one."""
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
            raise UserError("The columns of features are known once there is a bar; append one first.")


def _longest(columns: Sequence[_Column]) -> int:
    return max((column.formula.longest for column in columns if column.formula is not None), default=1)
