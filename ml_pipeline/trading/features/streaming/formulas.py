"""The built-in features bar by bar: those of a window from its bars, averages from their last level.

Each is the formula of the same name in `features.formulas`, for A assets at once and the latest bar alone. The
operations on a number are the same, in the same order, so the bits are; tests compare the two.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.formulas import SPANNED, macd
from ml_pipeline.trading.features.indicators import Feature
from ml_pipeline.trading.features.streaming.recent_bars import RecentBars
from ml_pipeline.trading.market.data import FloatArray

Mask = NDArray[np.bool_]


class StreamedFormula(Protocol):
    """A feature of A assets. longest: how many bars it looks back, the latest included."""

    longest: int

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        """The values (A,) after a bar was added to the assets that are `fresh`, NaN during warm-up.

        Those of the others have no meaning.
        """


def streamed(feature: Feature, n_assets: int) -> StreamedFormula | None:
    """The feature bar by bar; None for one that is no formula of ours."""
    compute = feature.compute
    make = _STREAMED.get(compute.func) if isinstance(compute, partial) else None
    return None if make is None else make(n_assets, **compute.keywords)  # type: ignore[attr-defined]


class _Average:
    """An exponential average that begins with the mean of its first `span` values: `formulas._smoothed`."""

    def __init__(self, n_assets: int, span: int, alpha: float) -> None:
        self.level = np.full(n_assets, np.nan)
        self._span = span
        self._alpha = alpha

    def update(
        self, values: FloatArray, n_values: NDArray[np.int64], fresh: Mask, first: Callable[[], FloatArray]
    ) -> FloatArray:
        """The level (A,) after `values`, the latest of `n_values`; first: the last `span` values, (A, span)."""
        moved = self.level + self._alpha * (values - self.level)
        begins = fresh & (n_values == self._span)
        if begins.any():
            moved[begins] = first()[begins].mean(axis=-1)
        self.level = np.where(fresh, moved, self.level)
        return self.level


class _LogReturn:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span + 1
        self._span = span

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        return np.asarray(np.log(bars.close / bars.close_before(self._span)))


class _Volatility:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span + 1

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        return np.asarray(np.diff(np.log(bars.closes(self.longest)), axis=-1).std(axis=-1))


class _Sma:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        return np.asarray(bars.closes(self.longest).mean(axis=-1))


class _VolumeZscore:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        windows = np.log1p(bars.volumes(self.longest))
        deviation = windows.std(axis=-1)
        varies = deviation > 1e-12
        scores = (windows[:, -1] - windows.mean(axis=-1)) / np.where(varies, deviation, 1.0)
        return np.where(bars.count < self.longest, np.nan, np.where(varies, scores, 0.0))


class _Ema:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span
        self._average = _Average(n_assets, span, 2 / (span + 1))

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        return self._average.update(bars.close, bars.count, fresh, lambda: bars.closes(self.longest))


class _EmaDistance(_Ema):
    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        return np.asarray(np.log(bars.close / super().update(bars, fresh)))


class _Macd:
    def __init__(self, n_assets: int, fast: int, slow: int) -> None:
        self.longest = slow
        self._fast, self._slow = _Ema(n_assets, fast), _Ema(n_assets, slow)

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        return (self._fast.update(bars, fresh) - self._slow.update(bars, fresh)) / bars.close


class _Rsi:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span + 1
        self._gains, self._losses = (_Average(n_assets, span, 1 / span) for _ in range(2))

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        def changes() -> FloatArray:
            return np.diff(bars.closes(self.longest), axis=-1)

        change, n_changes = bars.close - bars.close_before(1), bars.count - 1
        gains = self._gains.update(np.maximum(change, 0.0), n_changes, fresh, lambda: np.maximum(changes(), 0.0))
        losses = self._losses.update(np.maximum(-change, 0.0), n_changes, fresh, lambda: np.maximum(-changes(), 0.0))
        moved = gains + losses
        rsi = np.where(moved > 0, 100.0 * gains / np.where(moved > 0, moved, 1.0), 50.0)
        return np.where(np.isnan(moved), np.nan, rsi)


class _Atr:
    def __init__(self, n_assets: int, span: int) -> None:
        self.longest = span + 1
        self._average = _Average(n_assets, span, 1 / span)

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        def true_ranges(n: int) -> FloatArray:
            before = bars.closes(n + 1)[:, :-1]
            return np.asarray(np.maximum(bars.highs(n), before) - np.minimum(bars.lows(n), before))

        average = self._average.update(
            true_ranges(1)[:, 0], bars.count - 1, fresh, lambda: true_ranges(self.longest - 1)
        )
        return average / bars.close


_STREAMED: dict[object, Callable[..., StreamedFormula]] = {
    macd: _Macd,
    **{
        SPANNED[name][0]: formula
        for name, formula in (
            ("log_return", _LogReturn),
            ("volatility", _Volatility),
            ("rsi", _Rsi),
            ("ema_distance", _EmaDistance),
            ("ema", _Ema),
            ("sma", _Sma),
            ("atr", _Atr),
            ("volume_zscore", _VolumeZscore),
        )
    },
}
