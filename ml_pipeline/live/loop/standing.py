"""Where a session stands: its bars so far, and what its journal remembers from one bar to the next."""

from collections.abc import Sequence

import numpy as np

from ml_pipeline.live.record.journal import Journal
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray

_CLOSING, _FOLLOWS, _DECIDED = "closing", "follows", "decided"  # in the journal


class Standing:
    """As the journal has it; A symbols.

    number: of the next bar. begun: whether a bar has a row of the ledger. last: the latest bars; None before the first.
    closes: the last close of each symbol, float64 (A,), NaN before the first.
    closing_ordered: of all positions, at the last bar. follows: whether what is under way are no choices of the model.
    decided: whether the model decided at the last bar.
    """

    def __init__(self, journal: Journal, symbols: Sequence[str]) -> None:
        self._journal = journal
        last = journal.last_bar()
        self.number = 0 if last is None else last[0] + 1
        self.begun = journal.first_account_bar() is not None
        self.last: BarSet | None = None if last is None else next(journal.bars(last[0]))
        self.closes: FloatArray = np.full(len(symbols), np.nan)
        for bars in journal.bars():
            self._note_closes(bars)
        self.closing_ordered = bool(journal.snapshot(_CLOSING))
        self.follows = bool(journal.snapshot(_FOLLOWS))
        self.decided = bool(journal.snapshot(_DECIDED))

    @property
    def time(self) -> np.datetime64 | None:
        """Of the latest bars."""
        return None if self.last is None else self.last.time

    def note_bar(self, bars: BarSet) -> None:
        """These bars are in the journal by now."""
        self.number += 1
        self.last = bars
        self._note_closes(bars)

    # Within a transaction each

    def note_closing(self, ordered: bool) -> None:
        if ordered != self.closing_ordered:
            self.closing_ordered = ordered
            self._journal.set_snapshot(_CLOSING, ordered)

    def note_follows(self, follows: bool) -> None:
        if follows != self.follows:
            self.follows = follows
            self._journal.set_snapshot(_FOLLOWS, follows)

    def keep_decided(self) -> None:
        self._journal.set_snapshot(_DECIDED, self.decided)

    def _note_closes(self, bars: BarSet) -> None:
        self.closes = np.where(bars.present, bars.close, self.closes)
