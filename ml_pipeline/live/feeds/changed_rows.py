"""What changed between two readings of the same data, in bars that were given out before.

T bars, A assets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.feeds.feed import Correction
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.tape import bar_sets_of

_TABLES = ("open", "high", "low", "close", "volume")


def of_symbols(market: MarketData, symbols: Sequence[str]) -> MarketData:
    """The market of these symbols, in this order; one that it does not have has no bar."""
    if market.symbols == tuple(symbols):
        return market
    columns = [market.symbols.index(symbol) if symbol in market.symbols else -1 for symbol in symbols]

    def selected(table: NDArray[Any], empty: Any) -> NDArray[Any]:
        return np.where(np.array(columns) >= 0, table[:, columns], empty)

    tables: dict[str, Any] = {name: selected(getattr(market, name), np.nan) for name in _TABLES}
    tables["volume"] = np.nan_to_num(tables["volume"], nan=0.0)
    tables["tradable"] = selected(market.tradable, False)
    tables["half_spread"] = None if market.half_spread is None else selected(market.half_spread, 0.0)
    tables["outside"] = None if market.outside is None else selected(market.outside, False)
    own = {name: selected(values, np.nan) for name, values in market.columns.items()}
    return replace(market, symbols=tuple(symbols), columns=own, **tables)


def trusted_from(market: MarketData, *, longer: bool) -> int:
    """The first row of a reading that begins in the middle of the data in which no asset may lack earlier rows.

    longer: its bars are made of shorter ones, so that an asset's first may be a part of one.
    """
    first = int(np.argmax(market.tradable, axis=0)[market.tradable.any(axis=0)].max(initial=0))
    return first + longer


def changed_bars(before: MarketData, now: MarketData, *, first: int, last: np.datetime64) -> Iterator[Correction]:
    """The bars up to the time `last` that are other than before, from the row `first` of `now` on, oldest first.

    Bars that are gone are no correction: files are cut short at their beginning.
    """
    stop = int(np.searchsorted(now.times, last, side="right"))
    if stop <= first:
        return
    times = now.times[first:stop]
    rows = np.searchsorted(before.times, times)
    known = rows < before.n_bars
    known[known] = before.times[rows[known]] == times[known]
    was_there = np.zeros((len(times), len(now.symbols)), dtype=bool)
    was_there[known] = before.tradable[rows[known]]
    is_there = now.tradable[first:stop]
    differs = is_there & ~was_there
    for name, table in _values_of(now).items():
        old = _values_of(before).get(name)
        if old is not None:
            new = table[first:stop][known]
            same = (new == old[rows[known]]) | (np.isnan(new) & np.isnan(old[rows[known]]))
            differs[known] |= was_there[known] & is_there[known] & ~same
    earliest = times < before.times[0]  # data that begin earlier than they did are no change of what was given
    for i in np.flatnonzero(differs.any(axis=1) & ~earliest):
        (bars,) = bar_sets_of(now.bars(first + int(i), first + int(i) + 1))
        symbols = tuple(symbol for symbol, changed in zip(now.symbols, differs[i], strict=True) if changed)
        yield Correction(bars, symbols, late=bool((is_there[i] & ~was_there[i]).any()))


def _values_of(market: MarketData) -> dict[str, NDArray[np.float64]]:
    tables = {name: getattr(market, name) for name in _TABLES}
    if market.half_spread is not None:
        tables["half_spread"] = market.half_spread
    return tables | dict(market.columns)
