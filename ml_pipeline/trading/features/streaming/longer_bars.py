"""Longer bars of each asset as its bars come in: `timeframes.long_bars` one bar at a time.

A assets.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.streaming.recent_bars import RecentBars
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import Timing, long_places

Mask = NDArray[np.bool_]


def column_of(bars: BarSet, name: str) -> FloatArray:
    """A `feature_*` column of the bars, (A,); NaN where they came without it."""
    values = bars.columns.get(name)
    return np.full(len(bars.close), np.nan) if values is None else values


class LongerBars:
    """Bars of `length` ns. recent: those that are known. columns: the `feature_*` columns of the latest bar of each.

    first: the bars that will come first, which tell how many assets and which columns there are.
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

    def append(self, bars: BarSet) -> Iterator[Mask]:
        """Add the next bars; yields the assets of which a longer bar is known by them, once it is in `recent`.

        That may happen twice: a bar after a gap ends the longer bar before it, and may fill its own.
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

    def _add(self, bars: BarSet, present: Mask, begins: Mask) -> None:
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

    def _finish(self, which: Mask) -> None:
        """Make the longer bars of these assets known."""
        assets = np.flatnonzero(which)
        volume = np.full(len(which), np.nan)
        for a in assets.tolist():  # a sum adds in an order of its own, that of `together`
            volume[a] = np.add.reduceat(np.array(self._volumes[a]), [0])[0]
        self.recent.append(self._high, self._low, self._close, volume, fresh=which)
