"""The formulas of the built-in features: bars -> float64 (T,), with NaN during warm-up; T exceeds the warm-up.

Each value depends only on its own bar and earlier ones. `indicators` lists them by name. Built-in features are
implemented twice: here for all bars at once, and in `streaming_formulas` bar by bar. Tests check for equal bits.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

_DAY_S = 86_400
_MONDAY_S = 4 * _DAY_S  # 1970-01-05
# Rolling windows and averages are computed for this many bars at a time, which bounds the memory.
_CHUNK = 1 << 16


class Bars(NamedTuple):
    """The bars of one asset, without times at which it has no bar; each array is (T,)."""

    times: NDArray[np.datetime64]
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    columns: Mapping[str, FloatArray]
    """The `feature_*` columns of the data."""


def _log_return(bars: Bars, span: int) -> FloatArray:
    """ln(close[t] / close[t - span])."""
    return _after(span, np.log(bars.close[span:] / bars.close[:-span]))


def _volatility(bars: Bars, span: int) -> FloatArray:
    """Standard deviation (ddof 0) of the last `span` one-bar log returns."""
    returns = np.diff(np.log(bars.close))
    return _after(span, _rolling(returns, span, lambda windows: windows.std(axis=-1)))


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


def _ema(bars: Bars, span: int) -> FloatArray:
    """The EMA of `span` bars, alpha 2 / (span + 1), in money."""
    return _after(span - 1, _smoothed(bars.close, span, 2 / (span + 1)))


def _sma(bars: Bars, span: int) -> FloatArray:
    """The mean close of `span` bars, in money."""
    return _after(span - 1, _rolling(bars.close, span, lambda windows: windows.mean(axis=-1)))


def macd(bars: Bars, fast: int, slow: int) -> FloatArray:
    """(EMA of `fast` bars - EMA of `slow` bars) / close; `slow` is larger."""
    quick = _smoothed(bars.close, fast, 2 / (fast + 1))[slow - fast :]
    lagging = _smoothed(bars.close, slow, 2 / (slow + 1))
    return _after(slow - 1, (quick - lagging) / bars.close[slow - 1 :])


def _atr(bars: Bars, span: int) -> FloatArray:
    """Average true range over close, smoothed as Wilder does. Source: Wilder 1978."""
    high = np.maximum(bars.high[1:], bars.close[:-1])
    low = np.minimum(bars.low[1:], bars.close[:-1])
    return _after(span, _smoothed(high - low, span, 1 / span) / bars.close[span:])


def _volume_zscore(bars: Bars, span: int) -> FloatArray:
    """The z-score of ln(1 + volume) over the last `span` bars; 0 if it does not vary."""

    def score(windows: FloatArray) -> FloatArray:
        deviation = windows.std(axis=-1)
        varies = deviation > 1e-12
        scores = (windows[:, -1] - windows.mean(axis=-1)) / np.where(varies, deviation, 1.0)
        return np.where(varies, scores, 0.0)

    return _after(span - 1, _rolling(np.log1p(bars.volume), span, score))


def phase(wave: np.ufunc, period_s: int, origin_s: int, bars: Bars) -> FloatArray:
    """A wave of each bar's time with this period, which begins at `origin_s`."""
    seconds = bars.times.astype("datetime64[s]").astype(np.int64) - origin_s
    return np.asarray(wave(2 * np.pi * (seconds % period_s) / period_s), dtype=np.float64)


def _smoothed(values: FloatArray, span: int, alpha: float) -> FloatArray:
    """Exponential average from bar span-1 on, started with the mean of the first `span` values: (T - span + 1,)."""
    smoothed = np.empty(len(values) - span + 1)
    smoothed[0] = level = float(np.mean(values[:span]))
    for start in range(span, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK].tolist()
        smoothed[start - span + 1 :][: len(chunk)] = [level := level + alpha * (value - level) for value in chunk]
    return smoothed


def _rolling(values: FloatArray, span: int, statistic: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """A statistic of each window of `span` values, windows (n, span) -> (n,): (T - span + 1,)."""
    windows = sliding_window_view(values, span)
    return np.concatenate([statistic(windows[start : start + _CHUNK]) for start in range(0, len(windows), _CHUNK)])


def _after(warm_up: int, values: FloatArray) -> FloatArray:
    return np.concatenate([np.full(warm_up, np.nan), values])


# Name: (formula, shortest span, bars of warm-up beyond the span).
SPANNED: dict[str, tuple[Callable[..., FloatArray], int, int]] = {
    "log_return": (_log_return, 1, 0),
    "volatility": (_volatility, 2, 0),
    "rsi": (_rsi, 2, 0),
    "ema_distance": (_ema_distance, 2, -1),
    "ema": (_ema, 2, -1),
    "sma": (_sma, 2, -1),
    "atr": (_atr, 1, 0),
    "volume_zscore": (_volume_zscore, 2, -1),
}
# Name: (period, a time at which a period begins), both in seconds.
OF_TIME = {"time_of_day": (_DAY_S, 0), "time_of_week": (7 * _DAY_S, _MONDAY_S)}
