"""Innovations of return, range and volume: the part of each bar that the past of the asset does not explain.

Honest features do not predict later innovations, even in a market that trends, reverts or clusters. T bars of one
asset.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.market.data import FloatArray

TARGETS = ("return", "range", "volume")
_MOST_LAGS = 20
_MEANS = (5, 20, 100, 300, 1000, 5000)
_TRENDS = (3, 10, 30, 100, 300, 1000)
_VOLATILITY_BARS = 50
# Moves are clipped to this many deviations, so that single bars have little effect.
_LARGEST = 6.0
# Bars that the mean of a time of day or week needs; otherwise coarser times are used.
_FEWEST_OF_TIME = 200
_FEWEST_OF_COARSE_TIME = 20
_HALF_HOUR, _HOUR, _DAY = (minutes * 60 * 10**9 for minutes in (30, 60, 1440))
# More bars than these are measured in stretches, which bounds the time.
_MOST_AT_ONCE, _STRETCH, _N_STRETCHES = 40_000, 10_000, 4
# If the past explains this much of the variance, the rest is rounding.
_ALL = 0.98


@dataclass(frozen=True, eq=False)
class Innovations:
    """Innovations of the bars of an asset.

    of: by target, (T,), ranks of the residuals, with mean 0 and variance 1. moves: residuals of returns before ranking.
    explained: fraction of the variance of returns that the past explains. present: (T, K), information about each bar
    at its close. A target that does not vary, or that the past explains fully, is left out.
    """

    of: dict[str, FloatArray]
    moves: FloatArray
    explained: float
    present: FloatArray
    bars: Bars
    _ranked: dict[int, FloatArray] = field(default_factory=dict)

    def ranked_moves(self, horizon: int) -> FloatArray:
        """The ranks of the innovations of returns over the next `horizon` bars, (T,), or fewer at the end."""
        if horizon not in self._ranked:
            total = np.concatenate([[0.0], np.cumsum(self.moves)])
            end = np.minimum(np.arange(len(self.moves)) + 1 + horizon, len(self.moves))
            self._ranked[horizon] = ranks(total[end] - total[1:])
        return self._ranked[horizon]

    @cached_property
    def stretches(self) -> list[tuple[int, "Innovations"]]:
        """(first bar, innovations) of each stretch: all bars, or four stretches if there are very many bars."""
        n = len(self.moves)
        if n <= _MOST_AT_ONCE:
            return [(0, self)]
        starts = np.linspace(0, n - _STRETCH, _N_STRETCHES).astype(int).tolist()
        return [(start, self._stretch(slice(start, start + _STRETCH))) for start in starts]

    def _stretch(self, rows: slice) -> "Innovations":
        of = {name: values[rows] for name, values in self.of.items()}
        cut = {name: values[rows] for name, values in self.bars._asdict().items() if name != "columns"}
        bars = Bars(**cut, columns={})
        return Innovations(of, self.moves[rows], self.explained, self.present[rows], bars)

    @cached_property
    def transforms(self) -> dict[str, NDArray[np.complex128]]:
        """The Fourier transform of each target, padded so that no lead wraps around."""
        size = padded_size(len(self.moves))
        return {name: np.fft.rfft(values, size) for name, values in self.of.items()}


def innovations(bars: Bars) -> Innovations:
    """The residuals of a regression of each bar on earlier bars and on the time of day and week.

    Regressors are lags, means over up to 5,000 bars and distances from trends, as many as T allows.
    """
    n = len(bars.close)
    prices = np.log(bars.close)
    seasons = _seasons(bars.times)
    targets = {
        "return": _moves(prices),
        "range": centred_ranks(_true_range(bars)),
        "volume": centred_ranks(bars.volume),
    }
    varying = {name: _without_means(values, seasons) for name, values in targets.items() if np.ptp(values) > 0}
    lags = max(1, min(_MOST_LAGS, n // 60))
    regressors = [np.ones(n)]
    for name, values in varying.items():
        regressors += [lagged(values, k + 1) for k in range(lags if name == "return" else lags // 2 + 1)]
        regressors += [lagged(_mean_so_far(values, span), 1) for span in _MEANS if span <= n // 6]
    regressors += [lagged(prices - _mean_so_far(prices, span), 1) for span in _TRENDS if span <= n // 6]
    regressors.append(lagged(np.abs(targets["return"]), 1))
    left, explained = {}, 0.0
    moves = np.zeros(n)
    for name, values in varying.items():
        rest = _without_means(residuals(values, regressors), seasons)
        part = 1 - rest.var() / values.var() if values.var() > 0 else 1.0
        if name == "return":
            moves, explained = rest, max(1 - (1 - part) * n / max(n - len(regressors), 1), 0.0)
        if part < _ALL:
            left[name] = centred_ranks(rest)
    present = np.column_stack([*varying.values(), *(lagged(values, 1) for values in varying.values()), np.ones(n)])
    return Innovations(left, moves, explained, present, bars)


def residuals(values: FloatArray, regressors: list[FloatArray]) -> FloatArray:
    """The residuals of values (n,) after least squares on the regressors, each (n,)."""
    columns = np.column_stack(regressors)
    columns = columns / np.maximum(np.sqrt((columns**2).mean(axis=0)), 1e-150)
    gram = columns.T @ columns + 1e-10 * len(values) * np.eye(columns.shape[1])  # regressors may depend on each other
    rest: FloatArray = values - columns @ np.linalg.solve(gram, columns.T @ values)
    return rest


def ranks(values: FloatArray) -> FloatArray:
    """Ranks from 0.5 to n - 0.5; equal values get their mean rank."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranked: FloatArray = (np.cumsum(counts) - counts / 2)[which]
    return ranked


def centred_ranks(values: FloatArray) -> FloatArray:
    """Ranks with mean 0 and variance 1, or all 0 if nothing varies."""
    ranked = ranks(values) - len(values) / 2
    return ranked / deviation if (deviation := ranked.std()) > 0 else ranked


def lagged(values: FloatArray, k: int) -> FloatArray:
    """The values k bars earlier; 0 for the first k bars."""
    before = np.zeros_like(values)
    before[k:] = values[: len(values) - k]
    return before


def padded_size(n: int) -> int:
    return 1 << (2 * n - 1).bit_length()


def _moves(prices: FloatArray) -> FloatArray:
    """Log returns in units of their deviation over earlier bars."""
    returns = np.diff(prices, prepend=prices[:1])
    usual = np.sqrt(lagged(_mean_so_far(returns**2, _VOLATILITY_BARS), 1))
    whole = returns.std()
    usual[:_VOLATILITY_BARS] = whole
    # A market without moves for a while has a volatility of 0.
    return np.clip(returns / np.maximum(usual, 0.05 * whole + 1e-150), -_LARGEST, _LARGEST)


def _true_range(bars: Bars) -> FloatArray:
    before = np.concatenate([bars.close[:1], bars.close[:-1]])
    spread: FloatArray = np.log(np.maximum(bars.high, before) / np.minimum(bars.low, before))
    return spread


def _mean_so_far(values: FloatArray, span: int) -> FloatArray:
    """The mean of the last `span` values, or of all so far."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(end - span, 0)
    mean: FloatArray = (total[end] - total[begin]) / (end - begin)
    return mean


def _seasons(times: NDArray[np.datetime64]) -> list[NDArray[np.int64]]:
    """Groups of bars at the same time of day, and of week, (T,) each."""
    since = times.astype("datetime64[ns]").astype(np.int64)
    of_day, weekday = since % _DAY, since // _DAY % 7
    kinds = [[of_day, of_day // _HALF_HOUR], [weekday * 24 + of_day // _HOUR, weekday]]
    found = []
    for kind in kinds:
        for key, fewest in zip(kind, (_FEWEST_OF_TIME, _FEWEST_OF_COARSE_TIME), strict=True):
            groups, which = np.unique(key, return_inverse=True)
            if len(groups) * fewest <= len(times):
                if len(groups) > 1:
                    found.append(which)
                break
    return found


def _without_means(values: FloatArray, groupings: list[NDArray[np.int64]]) -> FloatArray:
    for groups in groupings:
        values = values - (np.bincount(groups, values) / np.maximum(np.bincount(groups), 1))[groups]
    return values
