"""The close of bars: what happened until then is booked, and each bar gets its row of the ledger."""

import time
from collections.abc import Sequence

from ml_pipeline.live.brokers.broker import BrokerEvent, Charge, TradingSession
from ml_pipeline.live.loop.account_events import AccountEvents
from ml_pipeline.live.loop.booking import by_bar
from ml_pipeline.live.loop.one_bar.bar_decision import BarDecision
from ml_pipeline.live.loop.one_bar.incoming_bars import IncomingBars
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.trading.accounts.ledger import LedgerRow
from ml_pipeline.trading.market.bar_set import BarSet


class BarClose:
    """Closes the bars that wait, in one transaction with the decision on the last of them."""

    def __init__(
        self, session: RunningSession, incoming: IncomingBars, events: AccountEvents, decision: BarDecision
    ) -> None:
        self._session = session
        self._incoming = incoming
        self._events = events
        self._decision = decision

    def close_waiting(self, market: TradingSession | None) -> None:
        """Book what happened, close the bars, decide on the last one, and write its orders down.

        market: the market's session that the last bar lies in.
        """
        session, parts = self._session, self._session.parts
        waiting = self._incoming.take_waiting()
        started = time.perf_counter()
        with session.record.transaction():
            events = by_bar(session.desk.take_events(), [bars.closed_at for bars in waiting])
            for bars, of_bar in zip(waiting, events, strict=True):
                row = self._close(bars, of_bar)
                if bars is not waiting[-1]:
                    self._decision.note_undecided(bars, "the broker could not be reached in time")
            closing_s = time.perf_counter() - started
            self._decision.after_close(
                waiting[-1], row, market, closing_s=closing_s, after_gap=self._incoming.after_gap
            )
            session.state.account = parts.books.state()
            session.state.policy = parts.decider.state()
            session.state.guards = parts.guards.state()

    def _close(self, bars: BarSet, events: Sequence[BrokerEvent]) -> LedgerRow:
        parts, state = self._session.parts, self._session.state
        for event in events:
            # Charges of nothing are of the bars before the first row.
            if state.begun or not (isinstance(event, Charge) and not event.amount):
                self._events.book(event)
        row = parts.books.close_bar(bars, closing=state.closing_ordered)
        state.closing_ordered = False
        if state.begun:
            # Where nothing was decided, nothing is to be taken back: then everything counts as filled.
            filled = row.filled if state.decided else [1.0] * len(self._session.symbols)
            lapsed = self._session.desk.take_lapsed()
            parts.decider.note_settled(lapsed, filled=filled, exited=row.exited, holdings=row.positions)
        if state.awaiting_previous_model:
            parts.decider.follow_holdings(row.positions)
            state.awaiting_previous_model = False
        if not state.begun:
            row = self._incoming.with_first_spreads(row)
        state.begun, state.decided = True, False
        self._session.record.add_bar(state.number, bars, row)
        state.note_bar(bars)
        return row
