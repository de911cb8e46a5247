"""The bars of a session as they were told afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ml_pipeline.trading.market.bar_set import BarSet

_PRICES = ("open", "high", "low", "close", "volume")


def corrected_bars(
    bars: Sequence[BarSet], corrections: Sequence[Mapping[str, Any]], symbols: Sequence[str]
) -> tuple[list[BarSet], list[np.datetime64]]:
    """(the bars with all corrections in them, the times of those that differ).

    corrections: the log's events, in order. Each has the `bar` (its time), the `symbols` that changed, and by name what
    it tells of `open`, `high`, `low`, `close` and `volume`, a value per symbol of the session; what it does not tell
    stays as it was decided on. A symbol that had no bar has one now where all of its prices are told.
    """
    told = list(bars)
    row_of = {each.time.astype(np.int64).item(): row for row, each in enumerate(bars)}
    for correction in corrections:
        row = row_of.get(np.datetime64(correction["bar"], "ns").astype(np.int64).item())
        if row is not None:
            told[row] = _corrected(told[row], correction, symbols)
    changed = [old.time for old, new in zip(bars, told, strict=True) if not _same(old, new)]
    return told, changed


def _corrected(bars: BarSet, correction: Mapping[str, Any], symbols: Sequence[str]) -> BarSet:
    names = set(correction.get("symbols") or symbols)
    own = np.array([symbol in names for symbol in symbols])
    values: dict[str, Any] = {}
    for name in _PRICES:
        if (given := correction.get(name)) is not None:
            new = np.array([np.nan if value is None else value for value in given], dtype=np.float64)
            values[name] = np.where(own & ~np.isnan(new), new, getattr(bars, name))
    close = values.get("close", bars.close)
    # A price that is not told follows the close, so that the bar stays possible.
    low, high = values.get("low", bars.low), values.get("high", bars.high)
    values["low"], values["high"] = np.where(own, np.fmin(low, close), low), np.where(own, np.fmax(high, close), high)
    opened = values.get("open", bars.open)
    values["open"] = np.where(own & np.isnan(opened), close, opened)
    volume = values.get("volume", bars.volume)
    values["volume"] = np.where(own & np.isnan(volume), 0.0, volume)
    return replace(bars, **values, fillable=bars.fillable | (own & np.isnan(bars.close) & ~np.isnan(close)))


def _same(first: BarSet, second: BarSet) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True) for name in _PRICES)
