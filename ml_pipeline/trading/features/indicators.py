"""Causal features of bars, by name: the value at bar t depends only on bars up to t.

T bars, A assets. `scaling.FeatureScaler` scales the features.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runtime.user_code import call_user_code, import_by_name
from ml_pipeline.trading.features.formulas import OF_TIME, SPANNED, Bars, macd, phase
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.timeframes import LongBars, Timing, long_bars, timeframe_ns, together
from ml_pipeline.trading.market.times import as_text

_FIELDS = ("open", "high", "low", "close", "volume")


def require_longer(name: str, length: int, timing: Timing, *, source: str) -> None:
    """Raise UserError, with the name of the feature, if the bars are longer than `length` ns."""
    if length < timing.length:
        minutes = timing.length / 60e9
        raise UserError(
            f"Feature {name} needs bars no longer than its timeframe, but the bars of {source} have {minutes:g} "
            "minutes; use a longer timeframe."
        )


def bars_of(market: MarketData, asset: int) -> Bars:
    """The bars of the asset with this index, without times at which it has none."""
    return BarsOf(market, asset).own


class BarsOf:
    """The bars of the asset with this index, or longer bars built from them."""

    def __init__(self, market: MarketData, asset: int, made: LongBars | None = None) -> None:
        self.symbol = market.symbols[asset]
        self._market = market
        self._asset = asset
        self._made = made
        rows = market.tradable[:, asset]
        self._rows: slice | NDArray[np.bool_] = slice(None) if rows.all() else rows
        self._longer: dict[int, tuple[BarsOf, NDArray[np.int64]]] = {}

    @cached_property
    def own(self) -> Bars:
        return self._bars(self._asset)

    def everyone(self) -> Mapping[str, Bars]:
        """The bars of all symbols at the times of this asset's bars.

        If a symbol has no bar, its prices are its last close with volume 0, or NaN before its first bar.
        """
        return {symbol: self._bars(a) for a, symbol in enumerate(self._market.symbols)}

    def longer(self, name: str, length: int) -> "tuple[BarsOf, NDArray[np.int64]]":
        """Bars of `length` ns, and the latest of them known at the close of each bar; -1 before the first.

        Raises UserError, with the name of the feature, if the asset's bars are longer.
        """
        if length not in self._longer:
            timing = self._market.timing
            require_longer(name, length, timing, source=self._market.source)
            made = long_bars(self.own.times, timing, length, causal=True)
            self._longer[length] = BarsOf(self._market, self._asset, made), made.latest_known()
        return self._longer[length]

    def _bars(self, asset: int) -> Bars:
        market = self._market
        times = market.times[self._rows]
        fields = {name: getattr(market, name)[self._rows, asset] for name in _FIELDS}
        fields |= {name: values[self._rows, asset] for name, values in market.columns.items()}
        if self._made is not None:
            times = self._made.starts[self._made.first].astype("datetime64[ns]")
            fields = together(fields, self._made)
        columns = {name: fields[name] for name in market.columns}
        return Bars(times, *(fields[name] for name in _FIELDS), columns=columns)  # type: ignore[misc]


# A feature of this size or more is an error, because its square could overflow in scaling.
_LARGEST = 1e100
_USUAL_MACD = (12, 26)


@dataclass(frozen=True)
class Feature:
    """One column per asset, or one for the whole market if `of_time`.

    compute: bars -> float64 (T,), whose first `warm_up` values are NaN; it takes (bars, bars of all symbols) if
    `of_all`. timeframe: length of the bars that it is computed on, such as 1h; None: the market's bars.
    """

    name: str
    warm_up: int
    compute: Callable[..., FloatArray]
    of_time: bool = False
    where_absent: float | None = None
    """The value if the asset has no bar; None: carry the last value forward."""
    of_all: bool = False
    timeframe: str | None = None


@dataclass(frozen=True)
class FeatureTable:
    """Computed features.

    values: float64 (T, D), the features of each asset in turn, then those of time; NaN during warm-up.
    first_bar: the first bar at which the features of some asset are complete; earlier bars are warm-up.
    n_asset_features: the number of columns per asset.
    """

    values: FloatArray
    columns: tuple[str, ...]
    first_bar: int
    n_asset_features: int


def compute_features(market: MarketData, names: Sequence[str]) -> FeatureTable:
    """The named features of each asset, computed on its bars and carried forward when it has no bar.

    Raises UserError for an unknown name, if no asset has enough bars, and if a feature is NaN after its warm-up.
    """
    features = features_named(names, tuple(market.columns), source=market.source)
    of_assets = [feature for feature in features if not feature.of_time]
    of_time = [feature for feature in features if feature.of_time]
    values = np.empty((market.n_bars, len(market.symbols) * len(of_assets) + len(of_time)))
    complete = np.zeros(market.n_bars, dtype=bool)
    for a in range(len(market.symbols)):
        own = market.tradable[:, a]
        bars = BarsOf(market, a)
        block = values[:, a * len(of_assets) : (a + 1) * len(of_assets)]
        for i, feature in enumerate(of_assets):
            block[:, i] = _carry_to_timeline(values_of(feature, bars), own)
            if feature.where_absent is not None:
                block[~own, i] = feature.where_absent
        complete |= ~np.isnan(block).any(axis=1) & np.logical_or.accumulate(own)
    nothing = np.empty(0)
    timeline = Bars(market.times, nothing, nothing, nothing, nothing, nothing, {})
    for i, feature in enumerate(of_time):
        values[:, values.shape[1] - len(of_time) + i] = feature.compute(timeline)
    if not complete.any():
        raise _too_few(market, features)
    titles = [f"{symbol}:{feature.name}" for symbol in market.symbols for feature in of_assets]
    titles += [feature.name for feature in of_time]
    return FeatureTable(values, tuple(titles), int(np.argmax(complete)), len(of_assets))


def make_features(name: str) -> list[Feature]:
    """The features of one name in the settings, such as `rsi_14` for the RSI over 14 bars; any span is allowed.

    `rsi_14@1h` is computed on hourly bars, and known once the hour is over. `feature_NAME` is a column of the data.
    `module:function` is a function of `Bars` that returns one value per bar, NaN during warm-up; a second argument
    receives a dict of the `Bars` of all symbols, aligned with those of the first.
    Raises UserError for an unknown name, with the nearest one.

    >>> [feature.name for feature in make_features("time_of_day")]
    ['time_of_day_sin', 'time_of_day_cos']
    """
    name, _, timeframe = name.rpartition("@") if "@" in name else (name, "", "")
    features = _on_own_bars(name)
    if not timeframe:
        return features
    timeframe_ns(timeframe)
    if any(feature.of_time or feature.where_absent is not None for feature in features):
        raise UserError(f"Feature {name} has no timeframe; write it without @{timeframe}.")
    return [replace(feature, name=f"{feature.name}@{timeframe}", timeframe=timeframe) for feature in features]


def _on_own_bars(name: str) -> list[Feature]:
    """The features of a name without a timeframe."""
    if name in OF_TIME:
        period_s, origin_s = OF_TIME[name]
        return [
            Feature(f"{name}_{wave.__name__}", 0, partial(phase, wave, period_s, origin_s), of_time=True)
            for wave in (np.sin, np.cos)
        ]
    if name == "tradable":
        return [Feature(name, 0, lambda bars: np.ones(len(bars.close)), where_absent=0.0)]
    if name.startswith(FEATURE_PREFIX):
        return [Feature(name, 0, lambda bars: bars.columns[name])]
    if is_function(name):
        if not callable(formula := import_by_name(name)):
            raise UserError(f"Feature {name} must be a function of Bars, but it is a {type(formula).__name__}.")
        return [_of_user(name, formula)]
    if match := re.fullmatch(r"macd(?:_(\d+)_(\d+))?", name):
        fast, slow = (int(match[1]), int(match[2])) if match[1] else _USUAL_MACD
        if not 1 < fast < slow:
            raise UserError(f"The spans of feature {name} must be 2 or more, the shorter one first.")
        return [Feature(name, slow - 1, partial(macd, fast=fast, slow=slow))]
    match = re.fullmatch(r"(\w+)_(\d+)", name)
    if match is None or match[1] not in SPANNED:
        raise UserError(f'There is no feature "{name}". {nearest(name, feature_examples())}')
    formula, shortest, extra = SPANNED[match[1]]
    span = int(match[2])
    if span < shortest:
        raise UserError(f"The span of feature {name} must be {shortest} or more.")
    return [Feature(name, span + extra, partial(formula, span=span))]


def _of_user(name: str, formula: Callable[..., Any]) -> Feature:
    """The feature of a user's function."""
    try:
        n_arguments = sum(p.default is p.empty for p in signature(formula).parameters.values())
    except (TypeError, ValueError):  # a function without Python code
        n_arguments = 1
    if n_arguments < 2:
        return Feature(name, 0, partial(call_user_code, name, formula))

    def of_all(bars: Bars, everyone: Mapping[str, Bars]) -> FloatArray:
        values: FloatArray = call_user_code(name, lambda own: formula(own, everyone), bars)
        return values

    return Feature(name, 0, of_all, of_all=True)


def is_function(name: str) -> bool:
    """Whether a feature is a user's function, module:function."""
    return ":" in name


def runs_alone(name: str) -> bool:
    """Whether a user's function needs only the bars of one asset."""
    return all(not feature.of_all and feature.timeframe is None for feature in make_features(name))


def feature_examples() -> list[str]:
    """One name of every kind of feature, with its usual span."""
    more = ("ema_20", "sma_20", "macd_5_35", "log_return_60", "volatility_60", "rsi_14@1h", "tradable")
    return [*DEFAULT_FEATURES, *more, *OF_TIME]


DEFAULT_FEATURES = (
    "log_return_1",
    "log_return_5",
    "log_return_20",
    "volatility_20",
    "rsi_14",
    "ema_distance_10",
    "ema_distance_20",
    "macd",
    "atr_14",
    "volume_zscore_20",
)


def features_named(names: Sequence[str], columns: Sequence[str], *, source: str) -> list[Feature]:
    """The features of these names on data with these `feature_*` columns.

    source: the name of the data in messages. Raises UserError for an unknown name or column.
    """
    return [feature for name in names for feature in _of_name(name, columns, source)]


def _of_name(name: str, columns: Sequence[str], source: str) -> list[Feature]:
    column, at, timeframe = name.partition("@")
    if name.startswith(FEATURE_PREFIX) and not columns:
        raise UserError(f"{source} has no column that begins with {FEATURE_PREFIX}; use other features.")
    if column == f"{FEATURE_PREFIX}*":
        return [feature for each in columns for feature in make_features(f"{each}{at}{timeframe}")]
    if name.startswith(FEATURE_PREFIX) and column not in columns:
        raise UserError(f'{source} has no column "{column}". {nearest(column, columns)}')
    return make_features(name)


def values_of(feature: Feature, bars_of: BarsOf) -> FloatArray:
    """The values of a feature at the bars of an asset. Raises UserError as `compute_features`."""
    if feature.timeframe is None:
        return _checked(feature, bars_of)
    longer, latest = bars_of.longer(feature.name, timeframe_ns(feature.timeframe))
    values = _checked(feature, longer)
    return np.where(latest >= 0, values[np.maximum(latest, 0)], np.nan)


def _checked(feature: Feature, bars_of: BarsOf) -> FloatArray:
    bars = bars_of.own
    n_bars = len(bars.close)
    if n_bars <= feature.warm_up:
        return np.full(n_bars, np.nan)
    arguments = (bars, bars_of.everyone()) if feature.of_all else (bars,)
    with np.errstate(all="ignore"):  # the values are checked below
        values = np.asarray(feature.compute(*arguments), dtype=np.float64)
    if values.shape != (n_bars,):
        raise UserError(
            f"{feature.name} must return one value per bar, ({n_bars},), but returned {values.shape}; fill the first "
            "values with NaN."
        )
    usable = is_usable(values)
    if not usable.all():
        warming_up = np.isnan(values) & ~np.logical_or.accumulate(usable)
        if (bad := np.flatnonzero(~usable & ~warming_up)).size:
            row = int(bad[0])
            raise unusable(feature, bars_of.symbol, float(values[row]), bars.times[row])
    return values


def is_usable(values: FloatArray) -> NDArray[np.bool_]:
    """Which values are valid after the warm-up of a feature."""
    return np.abs(values) < _LARGEST


def unusable(feature: Feature, symbol: str, value: float, time: np.datetime64) -> UserError:
    """The error about an invalid value after the first value of a feature."""
    return UserError(
        f"{feature.name} of {symbol} is {value:g} at {as_text(time)}, but after its first value a feature must be a "
        f"number below {_LARGEST:g}; fix the bars that it is computed from, or leave it out."
    )


def _too_few(market: MarketData, features: Sequence[Feature]) -> UserError:
    def in_time(feature: Feature) -> int:
        length = timeframe_ns(feature.timeframe) if feature.timeframe else market.timing.length
        return (feature.warm_up + 1) * length

    longest = max(features, key=in_time)
    of_length = f" of {longest.timeframe}" if longest.timeframe else ""
    return UserError(
        f"{market.source} has too few bars: {market.n_bars:,}, but feature {longest.name} needs "
        f"{longest.warm_up + 1:,}{of_length} of an asset; use more bars, or choose features with a shorter span."
    )


def _carry_to_timeline(own_values: FloatArray, own: NDArray[np.bool_]) -> FloatArray:
    """Values at an asset's bars, carried forward on the market's timeline; NaN before its first bar."""
    if own.all():
        return own_values
    if not len(own_values):  # the asset is not listed yet
        return np.full((len(own), *own_values.shape[1:]), np.nan)
    latest = np.cumsum(own) - 1
    carried = own_values[np.maximum(latest, 0)]
    carried[latest < 0] = np.nan
    return carried
