"""What comes in from the feed: bars that wait to be booked, gaps between them, and corrections of older ones."""

from collections import deque

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds.feed import Correction, Gap
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.trading.accounts.ledger import LedgerRow
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray


class IncomingBars:
    """Observes bars as they close. waiting: those that are not booked yet, oldest first."""

    def __init__(self, session: RunningSession) -> None:
        self._session = session
        self.waiting: list[BarSet] = []
        self._told = 0  # so many of them the broker knows
        self._spreads: deque[FloatArray | None] = deque(maxlen=session.parts.window)
        self._whole_since_gap: int | None = None

    @property
    def after_gap(self) -> bool:
        """Whether bars are missing in the window that the policy would see."""
        return self._whole_since_gap is not None

    def take(self, bars: BarSet) -> bool:
        """Observe the bars. Returns whether they wait to be booked; before the first decision they only warm up."""
        session, parts = self._session, self._session.parts
        bars = parts.guards.sift(bars)
        complete = self._observe(bars)
        self._spreads.append(bars.half_spread)
        if self._whole_since_gap is not None:
            self._whole_since_gap = self._whole_since_gap + 1 if bars.present.all() else 0
            if self._whole_since_gap >= parts.window:
                self._whole_since_gap = None
        if session.state.begun or self.waiting or complete:
            self.waiting.append(bars)
            return True
        parts.guards.note_history(bars)
        parts.books.warm_up(bars)
        session.attempt(lambda: parts.broker.market_closed_bar(bars))
        with session.record.transaction():
            session.record.add_bar(session.state.number, bars, None)
            session.state.account = parts.books.state()
            session.state.guards = parts.guards.state()
        session.state.note_bar(bars)
        return False

    def show_broker(self) -> None:
        """Show the broker the bars that wait. Raises BrokerUnavailable; those it knows it is not shown again."""
        for bars in self.waiting[self._told :]:
            self._session.parts.broker.market_closed_bar(bars)
            self._told += 1

    def take_waiting(self) -> list[BarSet]:
        """The bars that wait; from now on they do not."""
        waiting, self.waiting, self._told = self.waiting, [], 0
        return waiting

    def with_first_spreads(self, row: LedgerRow) -> LedgerRow:
        """The first row of the ledger: nothing is filled yet, so an evaluation writes the spreads of its first
        window's oldest bar."""
        if row.half_spreads is None:
            return row
        oldest = self._spreads[0]
        return row._replace(half_spreads=row.half_spreads if oldest is None else np.nan_to_num(oldest).tolist())

    def note_gap(self, gap: Gap) -> None:
        """Until a whole window of bars has come, nothing can be decided."""
        first, last = time_text(gap.first), time_text(gap.last)
        sentence = f"Bars are missing from {first} to {last}: {gap.why}"
        self._session.record.log_now("gap", self._session.state.time, **gap._asdict(), sentence=sentence)
        self._whole_since_gap = 0

    def note_correction(self, correction: Correction) -> None:
        when, which = time_text(correction.bars.time), ", ".join(correction.symbols)
        what = "came late" if correction.late else "was corrected"
        self._session.record.log_now(
            "correction",
            correction.bars.time,
            symbols=correction.symbols,
            late=correction.late,
            **{name: getattr(correction.bars, name) for name in ("open", "high", "low", "close", "volume")},
            sentence=f"A bar of {which or 'a symbol'} at {when} {what}; what was decided on it stays.",
        )

    def _observe(self, bars: BarSet) -> bool:
        """Whether the window is complete; where a feature fails, nothing is decided any more."""
        parts = self._session.parts
        if parts.failure is None:
            try:
                return parts.decider.observe(bars)
            except UserError as error:
                parts.failure = str(error)
        return False
