"""Measure how much a feature predicts of later bars beyond their past: at each lead, and over several horizons.

A value at bar t that was computed from later bars predicts them better than any information at t can. It is compared
with the innovations of later bars, so that a predictable market does not make honest features suspect.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.innovations import (
    Innovations,
    centred_ranks,
    lagged,
    padded_size,
    ranks,
    residuals,
)
from ml_pipeline.trading.market.data import FloatArray

HORIZONS = (1, 2, 5, 20)
# Rank correlations with the return of the next bar, and of several bars. The largest of honest features in real
# markets, from minutes to days, are 0.11 and 0.13; the planted signal of the built-in market has 0.17 and 0.38.
_UNLIKELY_CORRELATION = {1: 0.25, 2: 0.3, 5: 0.4, 20: 0.44}
_IMPOSSIBLE_CORRELATION = 0.45
# Bits about the sign of the return (at most 1), and about which of eight sizes it has (at most 3); honest features have
# 0.1 and 0.2. Volatility clusters, so honest features do predict the size of moves.
_UNLIKELY_SIGN_BITS, _IMPOSSIBLE_SIGN_BITS = 0.2, 0.35
_UNLIKELY_SIZE_BITS, _IMPOSSIBLE_SIZE_BITS = 0.5, 0.9
# A correlation must also exceed this many standard errors.
_STANDARD_ERRORS = 6.0
_N_BINS = 16
_N_SIZES = 8
# Fewest independent returns for an estimate of bits with this many bins.
_FEWEST_FOR_BITS = 600
_FEWEST = 60
# Parts of the data that are also measured separately, because a leak may begin late.
_N_PARTS = 10
_N_ROTATIONS = 19

# One lead: the largest correlations of honest columns are 0.08 with returns and 0.19 with range and volume. A column
# that rarely changes has few values to compare, so seasons that the past does not explain have more weight.
_OF_NEXT_BARS = 2
_UNLIKELY_AT_LEAD = {"return": 0.12, "range": 0.3, "volume": 0.3}
_UNLIKELY_AT_NEXT = {"return": 0.25, "range": 0.4, "volume": 0.4}
_UNLIKELY_IF_RARE = {"return": 0.3, "range": 0.6, "volume": 0.6}
# Sums over horizons.
_SUMS = (1, 2, 5, 10, 20, 50, 100, 250)
_FEWEST_WINDOWS = 20
_UNLIKELY_OVER = {"return": 0.3, "range": 0.5, "volume": 0.5}
_IMPOSSIBLE = {"return": 0.45, "range": 0.8, "volume": 0.8}
_MOST_DIGITS = 6
# Fraction of bars at which a column changes below which only those bars are compared, and below which it is rare.
_STILL, _RARE = 0.5, 0.06


@dataclass(frozen=True)
class Foresight:
    """An excess over honest features.

    measure: the measurement in words, with its value. what: the later bars it concerns. bound: limit of honest
    features; None if they have none of it.
    """

    impossible: bool
    measure: str
    what: str
    bound: float | None

    @property
    def sentence(self) -> str:
        known = "" if self.bound is None else f", but honest features have at most {self.bound:.2g}"
        return f"{self.measure} {self.what}{known}"


def above(value: float, bound: float) -> str:
    """A value with enough digits to tell it from the bound in `Foresight.sentence`.

    >>> above(-0.31, 0.25), above(0.2504, 0.25)
    ('-0.31', '0.2504')
    """
    digits = 2
    while digits < _MOST_DIGITS and round(abs(value), digits) <= float(f"{bound:.2g}"):
        digits += 1
    return f"{value:.{digits}f}"


def foresight(values: FloatArray, known: Innovations) -> Foresight | None:
    """The worst excess of a feature, (T,) over the bars of `known`; None if it predicts no more than honest ones.

    It measures the values, their growth, and their ratio to the close, because a level may hide a return. If there are
    very many bars, it measures some stretches.
    """
    worst: Foresight | None = None
    for start, stretch in known.stretches:
        found = _of_stretch(values[start : start + len(stretch.moves)], stretch)
        if found is not None and found.impossible:
            return found
        worst = worst or found
    return worst


def _of_stretch(values: FloatArray, known: Innovations) -> Foresight | None:
    there = np.isfinite(values)
    if not there.any():
        return None
    begin = int(np.argmax(there))
    values = np.where(there, values, values[begin])[begin:]
    if len(values) < _FEWEST or not np.ptp(values) > 0:
        return None
    worst: Foresight | None = None
    for found in (*_far(values, known, begin), *_near(values, known, begin)):
        if found.impossible:
            return found
        worst = worst or found
    return worst


def _near(values: FloatArray, known: Innovations, begin: int) -> Iterator[Foresight]:
    """Excesses for the next few bars, also in parts of the data and for relations that are not monotone."""
    if "return" not in known.of:
        return
    n = len(values)
    for told in (ranks(form) for form in _forms(values, known.bars.close[begin:])):
        for horizon in HORIZONS:
            returns = known.ranked_moves(horizon)[begin:]
            yield from _of_parts(told[: n - horizon], returns[: n - horizon], horizon)
            yield from _bits(told[: n - horizon] / n, returns[: n - horizon] / (n + begin), horizon)


def _forms(values: FloatArray, close: FloatArray) -> Iterator[FloatArray]:
    yield values
    yield np.diff(values, prepend=values[0])
    if values.min() > 0:
        yield np.log(values / close)


def _of_parts(told: FloatArray, returns: FloatArray, horizon: int) -> Iterator[Foresight]:
    for part in np.array_split(np.arange(len(told)), _N_PARTS):
        if len(part) < _FEWEST or not (np.ptp(told[part]) > 0 and np.ptp(returns[part]) > 0):
            continue
        correlation = float(np.corrcoef(told[part], returns[part])[0, 1])
        chance = _STANDARD_ERRORS / math.sqrt(len(part) / horizon)
        unlikely = max(_UNLIKELY_CORRELATION[horizon], chance)
        if abs(correlation) >= unlikely:
            impossible = abs(correlation) >= max(_IMPOSSIBLE_CORRELATION, chance)
            shown = above(correlation, unlikely)
            measure = f"has, in a tenth of the data, a rank correlation of {shown} with"
            yield Foresight(impossible, measure, _over("return", horizon), unlikely)


def _bits(told: FloatArray, returns: FloatArray, horizon: int) -> Iterator[Foresight]:
    """told, returns: ranks as fractions of their number."""
    if len(told) / horizon < _FEWEST_FOR_BITS:
        return
    bins = _bins(told, _N_BINS)
    for what, classes, n_classes, unlikely, impossible in (
        ("the sign of", (returns > 0.5).astype(np.int64), 2, _UNLIKELY_SIGN_BITS, _IMPOSSIBLE_SIGN_BITS),
        ("the size of", _bins(returns, _N_SIZES), _N_SIZES, _UNLIKELY_SIZE_BITS, _IMPOSSIBLE_SIZE_BITS),
    ):
        bits = _information(bins, classes, n_classes)
        if bits < unlikely:
            continue
        # A rotation keeps the clusters of both; the bits that remain are chance.
        offsets = np.linspace(0.1, 0.9, _N_ROTATIONS) * len(bins)
        chance = max(_information(np.roll(bins, int(offset)), classes, n_classes) for offset in offsets)
        if bits - chance >= unlikely:
            bound = max(unlikely, chance)
            measure = f"has {above(bits, bound)} bits about {what}"
            yield Foresight(bits - chance >= impossible, measure, _over("return", horizon), bound)


def _far(values: FloatArray, known: Innovations, begin: int) -> Iterator[Foresight]:
    """Excesses for every later bar, up to half of the data ahead, and for sums over up to 250 bars."""
    n = len(values)
    if n < 2 * _FEWEST:
        return
    size = padded_size(len(known.moves))
    for told in _news(values, known, begin):
        is_rare = np.mean(told != 0) < _RARE
        transform = np.fft.rfft(np.concatenate([np.zeros(begin), told]), size)
        for target, left in known.of.items():
            ahead = left[begin:]
            together = np.fft.irfft(known.transforms[target] * np.conj(transform), size)[1 : n // 2]
            lead = int(np.argmax(np.abs(together))) + 1
            bounds = _UNLIKELY_AT_NEXT if lead <= _OF_NEXT_BARS else _UNLIKELY_AT_LEAD
            bound = max(bounds[target], _UNLIKELY_IF_RARE[target] if is_rare else 0.0)
            if target == "return":  # if the past explains much, the residual may not be all news
                bound = max(bound, known.explained / 2)
            pair = _Pair(told[:-lead], ahead[lead:], told[:-lead] * ahead[lead:])
            yield from _excess(pair, target, bound, _at(target, lead))
            sums, news = np.concatenate([[0.0], np.cumsum(ahead)]), np.concatenate([[0.0], np.cumsum(told)])
            for horizon in _SUMS:
                if horizon * _FEWEST_WINDOWS > n:
                    break
                # The same sum of products, but of single innovations, which are independent; overlapping windows are
                # not (Hodrick 1992, standard errors 1B).
                products = ahead[horizon:] * (news[horizon:n] - news[: n - horizon])
                over = sums[horizon + 1 :] - sums[1 : n + 1 - horizon]
                pair = _Pair(told[: n - horizon], over, products)
                yield from _excess(pair, target, _UNLIKELY_OVER[target], _over(target, horizon))


def _news(values: FloatArray, known: Innovations, begin: int) -> Iterator[FloatArray]:
    """The values, their growth, and the part that neither past nor present bar explains; 0 if they did not change."""
    yield centred_ranks(values)
    growth = np.diff(values, prepend=values[0])
    moved = growth != 0
    is_still = moved.mean() < _STILL
    ranked = centred_ranks(growth)
    yield np.where(moved, ranked, 0.0) if is_still else ranked
    scaled = (values - values.mean()) / values.std()
    growth = np.diff(scaled, prepend=scaled[0])
    present = known.present[begin:]
    rest = residuals(growth, [*present.T, lagged(scaled, 1), *(lagged(growth, k) for k in (1, 2, 3))])
    if rest.var() <= 1e-10 * growth.var():  # rounding
        return
    if not is_still:
        yield centred_ranks(rest)
    else:
        yield np.where(moved, np.clip(rest / np.sqrt((rest[moved] ** 2).mean()), -3, 3), 0.0)


class _Pair(NamedTuple):
    """A column's values and the later figures. products: with the sum of told * ahead, and independent for an honest
    column."""

    told: FloatArray
    ahead: FloatArray
    products: FloatArray


def _excess(pair: _Pair, target: str, bound: float, what: str) -> Iterator[Foresight]:
    told, ahead, products = pair
    total = float(products.sum())
    scale = math.sqrt(float((told**2).sum()) * float((ahead[told != 0] ** 2).sum()))
    noise = math.sqrt(float((products**2).sum()))
    if scale == 0 or abs(total) < _STANDARD_ERRORS * noise or abs(total) < bound * scale:
        return
    correlation = total / scale
    impossible = abs(correlation) >= max(_IMPOSSIBLE[target], bound)
    yield Foresight(impossible, f"has a rank correlation of {above(correlation, bound)} with", what, bound)


def _over(target: str, horizon: int) -> str:
    return f"the {target} of the next bar" if horizon == 1 else f"the {target} over the next {horizon} bars"


def _at(target: str, lead: int) -> str:
    return f"the {target} of the next bar" if lead == 1 else f"the {target} {lead:,} bars later"


def _bins(fractions: FloatArray, n_bins: int) -> NDArray[np.int64]:
    """The quantile of each rank, 0 to n_bins - 1; equal values have the same quantile."""
    return np.clip(fractions * n_bins, 0, n_bins - 1).astype(np.int64)


def _information(bins: NDArray[np.int64], classes: NDArray[np.int64], n_classes: int) -> float:
    """Mutual information of two series of classes (n,), in bits."""
    joint = np.bincount(bins * n_classes + classes, minlength=_N_BINS * n_classes).reshape(_N_BINS, n_classes) / len(
        bins
    )
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    there = joint > 0
    return float((joint[there] * np.log2(joint[there] / apart[there])).sum())
