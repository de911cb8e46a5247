"""How much a feature tells of returns to come: rank correlation and mutual information, over several horizons.

A value at bar t that was made from later bars tells more of the return from t to t + h than anything known at t can.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

HORIZONS = (1, 2, 5, 20)
# Rank correlations with the return of the next bar, and of several: of honest features of real markets, from minutes to
# days, the largest seen are 0.11 and 0.13; the signal planted in the built-in market has 0.17 and 0.38.
_UNLIKELY_CORRELATION = {1: 0.25, 2: 0.3, 5: 0.4, 20: 0.44}
_IMPOSSIBLE_CORRELATION = 0.45
# Bits about the sign of the return, of 1, and about which of eight sizes it has, of 3; honest: 0.1 and 0.2. Volatility
# clusters, so that honest features do tell the size of moves.
_UNLIKELY_SIGN_BITS, _IMPOSSIBLE_SIGN_BITS = 0.2, 0.35
_UNLIKELY_SIZE_BITS, _IMPOSSIBLE_SIZE_BITS = 0.5, 0.9
# A correlation must also be this many standard errors of what chance gives, for n / h independent returns.
_STANDARD_ERRORS = 6.0
_N_BINS = 16
_N_SIZES = 8
# Independent returns that an estimate of bits needs, with so many bins.
_FEWEST_FOR_BITS = 600
_FEWEST = 60
# Each part of the data is looked at by itself as well: a leak may begin late.
_N_PARTS = 10
# Longer series are thinned to about this many values: enough for six standard errors, and quick.
_MOST = 60_000
_MOST_OF_PART = 15_000
_N_ROTATIONS = 19


@dataclass(frozen=True)
class Foresight:
    """One excess. measure: what was measured, in words with its number. bound: what honest features stay below."""

    impossible: bool
    horizon: int
    measure: str
    bound: float

    @property
    def sentence(self) -> str:
        bars = "of the next bar" if self.horizon == 1 else f"over the next {self.horizon} bars"
        return f"{self.measure} the return {bars}, where at most {self.bound:.2g} is known of honest features"


def foresight(values: FloatArray, close: FloatArray) -> Foresight | None:
    """The worst excess of a feature, both (T,) over an asset's own bars; None if it tells no more than honest ones do.

    The values, their growth, and their ratio to the close are looked at, since a level may hide a return.
    """
    worst: Foresight | None = None
    returns = {horizon: np.log(close[horizon:] / close[:-horizon]) for horizon in HORIZONS if len(close) > horizon}
    for told in _forms(values, close):
        for found in _excesses(told, returns):
            if found.impossible:
                return found
            worst = worst or found
    return worst


def _forms(values: FloatArray, close: FloatArray) -> Iterator[FloatArray]:
    yield values
    yield np.diff(values, prepend=np.nan)
    if np.nanmin(values, initial=np.inf) > 0:
        yield np.log(values / close)


def _excesses(values: FloatArray, returns_of: Mapping[int, FloatArray]) -> Iterator[Foresight]:
    for horizon, returns in returns_of.items():
        told = values[:-horizon]
        known = np.isfinite(told) & np.isfinite(returns)
        told, returns = told[known], returns[known]  # noqa: PLW2901
        every = -(-len(told) // _MOST) if len(told) else 1
        yield from _correlations(told[::every], returns[::every], horizon, max(horizon / every, 1.0))
        for part in np.array_split(np.arange(len(told)), _N_PARTS):
            step = -(-len(part) // _MOST_OF_PART) if len(part) else 1
            some = part[::step]
            yield from _correlations(told[some], returns[some], horizon, max(horizon / step, 1.0))
        yield from _bits(told[::every], returns[::every], horizon, max(horizon / every, 1.0))


def _correlations(told: FloatArray, returns: FloatArray, horizon: int, overlap: float) -> Iterator[Foresight]:
    if len(told) < _FEWEST or not (np.ptp(told) > 0 and np.ptp(returns) > 0):
        return
    correlation = rank_correlation(told, returns)
    chance = _STANDARD_ERRORS / math.sqrt(len(told) / overlap)
    unlikely = max(_UNLIKELY_CORRELATION[horizon], chance)
    if abs(correlation) >= unlikely:
        impossible = abs(correlation) >= max(_IMPOSSIBLE_CORRELATION, chance)
        yield Foresight(impossible, horizon, f"has a rank correlation of {correlation:.2f} with", unlikely)


def _bits(told: FloatArray, returns: FloatArray, horizon: int, overlap: float) -> Iterator[Foresight]:
    if len(told) / overlap < _FEWEST_FOR_BITS or not np.ptp(told) > 0:
        return
    bins = _bins(told, _N_BINS)
    for what, classes, n_classes, unlikely, impossible in (
        ("the sign of", (returns > 0).astype(np.int64), 2, _UNLIKELY_SIGN_BITS, _IMPOSSIBLE_SIGN_BITS),
        ("the size of", _bins(returns, _N_SIZES), _N_SIZES, _UNLIKELY_SIZE_BITS, _IMPOSSIBLE_SIZE_BITS),
    ):
        bits = _information(bins, classes, n_classes)
        if bits < unlikely:
            continue
        # Rotated against each other, both keep their own clusters, and what is left is chance.
        offsets = np.linspace(0.1, 0.9, _N_ROTATIONS) * len(bins)
        chance = max(_information(np.roll(bins, int(offset)), classes, n_classes) for offset in offsets)
        if bits - chance >= unlikely:
            yield Foresight(
                bits - chance >= impossible, horizon, f"has {bits:.2f} bits about {what}", max(unlikely, chance)
            )


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Spearman's rank correlation of two series (n,) that both vary; equal values share their mean rank."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: FloatArray) -> FloatArray:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def _bins(values: FloatArray, n_bins: int) -> NDArray[np.int64]:
    """The quantile of each value, 0 to n_bins - 1; equal values share theirs."""
    return np.minimum((_ranks(values) - 0.5) / len(values) * n_bins, n_bins - 1).astype(np.int64)


def _information(bins: NDArray[np.int64], classes: NDArray[np.int64], n_classes: int) -> float:
    """Mutual information of two series of classes (n,), in bits."""
    joint = np.bincount(bins * n_classes + classes, minlength=_N_BINS * n_classes).reshape(_N_BINS, n_classes) / len(
        bins
    )
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    there = joint > 0
    return float((joint[there] * np.log2(joint[there] / apart[there])).sum())
