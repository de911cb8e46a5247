"""The last bars of each asset side by side, so that one operation serves all assets.

A assets.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.formulas import SPANNED, macd
from ml_pipeline.trading.features.indicators import Feature
from ml_pipeline.trading.market.data import FloatArray

_HIGH, _LOW, _CLOSE, _VOLUME = range(4)
# Least number of spare columns of the buffer, which moves its bars back to the front once they are used up.
_SPARE = 256


class RecentBars:
    """The last `longest` bars of each of A assets, NaN before the first.

    count: int64 (A,), the bars of each asset so far. Windows are views (A, n), oldest first, valid until the next
    `append`; each row is contiguous in memory, as in `sliding_window_view`, so that sums over it add in the same order.
    """

    def __init__(self, n_assets: int, longest: int) -> None:
        self.count = np.zeros(n_assets, dtype=np.int64)
        self._longest = longest
        self._values = np.full((4, n_assets, longest + max(longest, _SPARE)), np.nan)
        self._end = longest

    def append(
        self,
        high: FloatArray,
        low: FloatArray,
        close: FloatArray,
        volume: FloatArray,
        *,
        fresh: NDArray[np.bool_],
    ) -> None:
        """Add a bar to each asset that is `fresh`, bool (A,); the others are unchanged."""
        end, longest, values = self._end, self._longest, self._values
        if end == values.shape[2]:
            values[:, :, :longest] = values[:, :, end - longest :].copy()
            end = longest
        for field, numbers in ((_HIGH, high), (_LOW, low), (_CLOSE, close), (_VOLUME, volume)):
            values[field, :, end] = numbers
        if not fresh.all():  # shift the other rows too, so that all end in the same column
            stale = np.flatnonzero(~fresh)
            values[:, stale, end - longest + 1 : end + 1] = values[:, stale, end - longest : end]
        self._end = end + 1
        self.count += fresh

    def closes(self, n: int) -> FloatArray:
        """The last n closes, (A, n)."""
        return self._window(_CLOSE, n)

    def highs(self, n: int) -> FloatArray:
        return self._window(_HIGH, n)

    def lows(self, n: int) -> FloatArray:
        return self._window(_LOW, n)

    def volumes(self, n: int) -> FloatArray:
        return self._window(_VOLUME, n)

    @property
    def close(self) -> FloatArray:
        """The latest close of each asset, (A,)."""
        return self._values[_CLOSE, :, self._end - 1]

    def close_before(self, n: int) -> FloatArray:
        """The close n bars before the latest, (A,)."""
        return self._values[_CLOSE, :, self._end - 1 - n]

    def _window(self, field: int, n: int) -> FloatArray:
        assert n <= self._longest, "a window longer than the buffer"
        return self._values[field, :, self._end - n : self._end]


Mask = NDArray[np.bool_]


class StreamedFormula(Protocol):
    """A feature of A assets. longest: how many bars it looks back, the latest included."""

    longest: int

    def update(self, bars: RecentBars, fresh: Mask) -> FloatArray:
        """The values (A,) after a bar was added to the assets that are `fresh`, NaN during warm-up.

        The values of the other assets have no meaning.
        """


def streamed(feature: Feature, n_assets: int) -> StreamedFormula | None:
    """The feature bar by bar; None if it has no built-in formula."""
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
