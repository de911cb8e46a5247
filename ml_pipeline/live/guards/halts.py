"""Symbols whose trading is halted, as the bars that are missing tell."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml_pipeline.live.guards.guard import Guard, Moment
from ml_pipeline.live.guards.verdict import Refusal, Verdict, blocking
from ml_pipeline.trading.market.bar_set import BarSet


class Halts(Guard):
    """Symbols that are not traded while they are halted."""

    name = "guard_halt_bars"

    def __init__(self, symbols: Sequence[str], *, missing_bars: int | None = None) -> None:
        """missing_bars: after so many bars without one of a symbol it counts as halted; None: never by that."""
        self._symbols = tuple(symbols)
        self._limit = missing_bars
        self._missing = np.zeros(len(symbols), dtype=np.int64)

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        self._missing = np.where(bars.present, 0, self._missing + 1)
        found = []
        for i in np.flatnonzero(self._missing >= self._limit) if self._limit is not None else ():
            symbol, missing = self._symbols[i], int(self._missing[i])
            sentence = (
                f"{symbol} is not traded until it has a bar again: it had none for {missing:,} bars, and counts as "
                f"halted after {self._limit:,} ({self.name})."
            )
            found.append(Refusal(self.name, symbol, float(missing), float(self._limit or 0), sentence))
        return blocking(found)

    def state(self) -> dict[str, Any]:
        return {"missing": dict(zip(self._symbols, self._missing.tolist(), strict=True))}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._missing = np.array([state["missing"].get(symbol, 0) for symbol in self._symbols], dtype=np.int64)
