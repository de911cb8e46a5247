"""Causal features of bars, by name: the value at bar t depends only on bars up to t.

T bars, A assets. `scaling.FeatureScaler` scales them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runtime.user_code import call_user_code, import_by_name
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.times import as_text

# A feature of this size or more is an error, and its square would overflow in scaling.
_LARGEST = 1e100
_DAY_S = 86_400
_MONDAY_S = 4 * _DAY_S  # 1970-01-05


class Bars(NamedTuple):
    """The bars of one asset, without those of the timeline where it has none; each array is (T,)."""

    times: NDArray[np.datetime64]
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    columns: Mapping[str, FloatArray]
    """The `feature_*` columns of the data."""


@dataclass(frozen=True)
class Feature:
    """One column per asset, or one for the whole market if `of_time`.

    compute: bars -> float64 (T,), whose first `warm_up` values are NaN for lack of earlier bars.
    """

    name: str
    warm_up: int
    compute: Callable[[Bars], FloatArray]
    of_time: bool = False
    where_absent: float | None = None
    """The value where the asset has no bar; None: carry the last value forward."""


@dataclass(frozen=True)
class FeatureTable:
    """values: float64 (T, D), the features of each asset in turn, then those of time; NaN during warm-up.

    first_bar: the first bar at which the features of some asset are complete; bars before it are warm-up.
    n_asset_features: the number of columns per asset.
    """

    values: FloatArray
    columns: tuple[str, ...]
    first_bar: int
    n_asset_features: int


def compute_features(market: MarketData, names: Sequence[str]) -> FeatureTable:
    """The named features of each asset, computed on the asset's own bars and carried forward where it has no bar.

    Raises UserError for an unknown name, if no asset has enough bars, and if a feature is NaN after its warm-up.
    """
    features = [feature for name in names for feature in _features_named(name, market)]
    of_assets = [feature for feature in features if not feature.of_time]
    columns: list[FloatArray] = []
    titles: list[str] = []
    complete = np.zeros(market.n_bars, dtype=bool)
    for a, symbol in enumerate(market.symbols):
        own = market.tradable[:, a]
        bars = bars_of(market, a)
        own_values = np.column_stack(
            [np.full((len(bars.close), 0), np.nan), *(_column(f, bars, symbol) for f in of_assets)]
        )
        values = _carry_to_timeline(own_values, own)
        for i, feature in enumerate(of_assets):
            if feature.where_absent is not None:
                values[~own, i] = feature.where_absent
        complete |= ~np.isnan(values).any(axis=1) & (np.cumsum(own) > 0)
        columns.append(values)
        titles += [f"{symbol}:{feature.name}" for feature in of_assets]
    nothing = np.empty(0)
    timeline = Bars(market.times, nothing, nothing, nothing, nothing, nothing, {})
    columns += [feature.compute(timeline)[:, None] for feature in features if feature.of_time]
    titles += [feature.name for feature in features if feature.of_time]
    if not complete.any():
        longest = max(features, key=lambda feature: feature.warm_up)
        raise UserError(
            f"The bars of {market.source} are too few: {market.n_bars:,}, but feature {longest.name} needs "
            f"{longest.warm_up + 1:,} of an asset; use more bars, or choose features with a shorter span."
        )
    return FeatureTable(np.column_stack(columns), tuple(titles), int(np.argmax(complete)), len(of_assets))


def bars_of(market: MarketData, a: int) -> Bars:
    """The own bars of the a-th asset."""
    own = market.tradable[:, a]
    prices = {name: getattr(market, name)[own, a] for name in ("open", "high", "low", "close", "volume")}
    return Bars(market.times[own], **prices, columns={name: each[own, a] for name, each in market.columns.items()})


def make_features(name: str) -> list[Feature]:
    """The features of one name in the settings, such as `rsi_14` for the RSI over 14 bars; any span is allowed.

    `feature_NAME` is a column of the data. `module:function` is a function of `Bars` that returns one value per bar,
    NaN during warm-up. Raises UserError for an unknown name, with the nearest one.

    >>> [feature.name for feature in make_features("time_of_day")]
    ['time_of_day_sin', 'time_of_day_cos']
    """
    if name in _OF_TIME:
        period_s, origin_s = _OF_TIME[name]
        return [
            Feature(f"{name}_{wave.__name__}", 0, partial(_phase, wave, period_s, origin_s), of_time=True)
            for wave in (np.sin, np.cos)
        ]
    if name == "macd":
        return [Feature(name, 25, _macd)]
    if name == "tradable":
        return [Feature(name, 0, lambda bars: np.ones(len(bars.close)), where_absent=0.0)]
    if name.startswith(FEATURE_PREFIX):
        return [Feature(name, 0, lambda bars: bars.columns[name])]
    if is_function(name):
        if not callable(formula := import_by_name(name)):
            raise UserError(f"Feature {name} must be a function of Bars, but it is a {type(formula).__name__}.")
        return [Feature(name, 0, partial(call_user_code, name, formula))]
    match = re.fullmatch(r"(\w+)_(\d+)", name)
    if match is None or match[1] not in _SPANNED:
        raise UserError(f'There is no feature "{name}". {nearest(name, feature_examples())}')
    formula, shortest, extra = _SPANNED[match[1]]
    span = int(match[2])
    if span < shortest:
        raise UserError(f"The span of feature {name} must be {shortest} or more.")
    return [Feature(name, span + extra, partial(formula, span=span))]


def is_function(name: str) -> bool:
    """Whether a feature is a user's function, module:function."""
    return ":" in name


def feature_examples() -> list[str]:
    """One name of every kind of feature, with its usual span."""
    return [*DEFAULT_FEATURES, "log_return_60", "volatility_60", "tradable", *_OF_TIME]


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


def _features_named(name: str, market: MarketData) -> list[Feature]:
    if name.startswith(FEATURE_PREFIX) and not market.columns:
        raise UserError(f"{market.source} has no column that begins with {FEATURE_PREFIX}; name other features.")
    if name == f"{FEATURE_PREFIX}*":
        return [feature for column in market.columns for feature in make_features(column)]
    if name.startswith(FEATURE_PREFIX) and name not in market.columns:
        raise UserError(f'{market.source} has no column "{name}". {nearest(name, market.columns)}')
    return make_features(name)


def _column(feature: Feature, bars: Bars, symbol: str) -> FloatArray:
    n_bars = len(bars.close)
    if n_bars <= feature.warm_up:
        return np.full(n_bars, np.nan)
    with np.errstate(all="ignore"):  # the values are checked below
        values = np.asarray(feature.compute(bars), dtype=np.float64)
    if values.shape != (n_bars,):
        raise UserError(
            f"{feature.name} must give one value per bar, ({n_bars},), but gave {values.shape}; let it begin with NaN."
        )
    usable = np.abs(values) < _LARGEST
    warming_up = np.isnan(values) & (np.cumsum(usable) == 0)
    if (bad := np.flatnonzero(~usable & ~warming_up)).size:
        row = int(bad[0])
        raise UserError(
            f"{feature.name} of {symbol} is {values[row]:g} at {as_text(bars.times[row])}, but after its first value "
            f"a feature must be a number below {_LARGEST:g}; fix the bars it is computed from, or leave it out."
        )
    return values


def _carry_to_timeline(own_values: FloatArray, own: NDArray[np.bool_]) -> FloatArray:
    """Values of an asset's own bars on the market's timeline, each carried to the asset's next bar; NaN before."""
    latest = np.cumsum(own) - 1
    carried = own_values[np.maximum(latest, 0)]
    carried[latest < 0] = np.nan
    return carried


# --- formulas: bars -> (T,) with the warm-up NaN; T exceeds the warm-up ---


def _log_return(bars: Bars, span: int) -> FloatArray:
    """ln(close[t] / close[t - span])."""
    return _after(span, np.log(bars.close[span:] / bars.close[:-span]))


def _volatility(bars: Bars, span: int) -> FloatArray:
    """Standard deviation (ddof 0) of the last `span` one-bar log returns."""
    returns = np.diff(np.log(bars.close))
    return _after(span, sliding_window_view(returns, span).std(axis=-1))


def _rsi(bars: Bars, span: int) -> FloatArray:
    """100 gains / (gains + losses), both smoothed as Wilder does; 50 if nothing moved. Source: Wilder 1978."""
    change = np.diff(bars.close)
    gains = _smoothed(np.maximum(change, 0.0), span, 1 / span)
    losses = _smoothed(np.maximum(-change, 0.0), span, 1 / span)
    moved = gains + losses
    return _after(span, np.where(moved > 0, 100.0 * gains / np.where(moved > 0, moved, 1.0), 50.0))


def _ema_distance(bars: Bars, span: int) -> FloatArray:
    """ln(close / EMA of `span` bars), alpha 2 / (span + 1)."""
    ema = _smoothed(bars.close, span, 2 / (span + 1))
    return _after(span - 1, np.log(bars.close[span - 1 :] / ema))


def _macd(bars: Bars) -> FloatArray:
    """(EMA 12 - EMA 26) / close."""
    fast = _smoothed(bars.close, 12, 2 / 13)[14:]
    slow = _smoothed(bars.close, 26, 2 / 27)
    return _after(25, (fast - slow) / bars.close[25:])


def _atr(bars: Bars, span: int) -> FloatArray:
    """Average true range over close, smoothed as Wilder does. Source: Wilder 1978."""
    high = np.maximum(bars.high[1:], bars.close[:-1])
    low = np.minimum(bars.low[1:], bars.close[:-1])
    return _after(span, _smoothed(high - low, span, 1 / span) / bars.close[span:])


def _volume_zscore(bars: Bars, span: int) -> FloatArray:
    """The z-score of ln(1 + volume) over the last `span` bars; 0 if it does not vary."""
    windows = sliding_window_view(np.log1p(bars.volume), span)
    deviation = windows.std(axis=-1)
    varies = deviation > 1e-12
    score = (windows[:, -1] - windows.mean(axis=-1)) / np.where(varies, deviation, 1.0)
    return _after(span - 1, np.where(varies, score, 0.0))


def _phase(wave: np.ufunc, period_s: int, origin_s: int, bars: Bars) -> FloatArray:
    seconds = bars.times.astype("datetime64[s]").astype(np.int64) - origin_s
    return np.asarray(wave(2 * np.pi * (seconds % period_s) / period_s), dtype=np.float64)


def _smoothed(values: FloatArray, span: int, alpha: float) -> FloatArray:
    """Exponential average from bar span-1 on, started with the mean of the first `span` values: (T - span + 1,)."""
    start = float(np.mean(values[:span]))
    later = values[span:].tolist()
    return np.array(list(accumulate(later, lambda level, value: level + alpha * (value - level), initial=start)))


def _after(warm_up: int, values: FloatArray) -> FloatArray:
    return np.concatenate([np.full(warm_up, np.nan), values])


# Name: (formula, shortest span, bars of warm-up beyond the span).
_SPANNED: dict[str, tuple[Callable[..., FloatArray], int, int]] = {
    "log_return": (_log_return, 1, 0),
    "volatility": (_volatility, 2, 0),
    "rsi": (_rsi, 2, 0),
    "ema_distance": (_ema_distance, 2, -1),
    "atr": (_atr, 1, 0),
    "volume_zscore": (_volume_zscore, 2, -1),
}
# Name: (period, a time at which a period begins), both in seconds.
_OF_TIME = {"time_of_day": (_DAY_S, 0), "time_of_week": (7 * _DAY_S, _MONDAY_S)}
