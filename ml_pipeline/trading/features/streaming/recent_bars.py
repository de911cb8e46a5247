"""The last bars of each asset side by side, so that one operation serves all assets.

A assets.
"""

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

_HIGH, _LOW, _CLOSE, _VOLUME = range(4)
# Bars by which the room exceeds what is kept, at least: it is moved back to the front once in so many.
_SPARE = 256


class RecentBars:
    """The last `longest` bars of each of A assets, NaN before the first.

    count: int64 (A,), the bars of each asset so far. Windows are views (A, n), oldest first, valid until the next
    `append`; each row lies together in memory, as in `sliding_window_view`, so that sums over it add in the same order.
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
        """Add a bar to each asset that is `fresh`, bool (A,); the others keep theirs."""
        end, longest, values = self._end, self._longest, self._values
        if end == values.shape[2]:
            values[:, :, :longest] = values[:, :, end - longest :].copy()
            end = longest
        for field, numbers in ((_HIGH, high), (_LOW, low), (_CLOSE, close), (_VOLUME, volume)):
            values[field, :, end] = numbers
        if not fresh.all():  # rows of the others move along, so that all end at the same place
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
        assert n <= self._longest, "a window longer than what is kept"
        return self._values[field, :, self._end - n : self._end]
