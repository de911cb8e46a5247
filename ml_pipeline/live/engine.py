"""The main loop of a session: handle events of the feed and requests of users, trade bars, and end the session."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ml_pipeline.live.account_check import check_account, compare
from ml_pipeline.live.bar import BarProcessor
from ml_pipeline.live.booking import book_all, cancel_and_book, look_and_book
from ml_pipeline.live.brokers.broker import exact, quantity_text
from ml_pipeline.live.cash_flows import move_simulated_money
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.connections import still_unreachable
from ml_pipeline.live.corporate_actions import note_action
from ml_pipeline.live.feeds.feed import CorporateAction, Correction, End, Gap
from ml_pipeline.live.orders import OpenOrder
from ml_pipeline.live.protection import Unprotected
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.shutdown import ClosingDown, Ended, ShutdownRequest
from ml_pipeline.live.status import write_status
from ml_pipeline.live.supervision.requests import ask
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.trading.market.bar_set import BarSet

_CHECK_EVERY_S = 60.0
"""Longest time between two comparisons of account and books while no bar comes."""
_LAST_ATTEMPTS = 6
"""Attempts to reach a broker after the last bar."""
_ROUNDS = 3
"""Attempts to protect positions while their stops and targets are being filled."""


class TradingEngine:
    """Trades until the bars end, a user requests an end, or a guard or a difference ends the session.

    It never prints and installs no signal handler. `stop` may be requested from any thread at any time.
    """

    def __init__(
        self, session: SessionComponents, stop: StopRequest, *, beat: Callable[[], None] = lambda: None
    ) -> None:
        """session: restored from its journal, see `recovery`. beat: called in each round of the loop."""
        self._session, self._stop, self._beat = session, stop, beat
        self._bar = BarProcessor(session)
        self._checked_at = time.monotonic()  # when account and books were compared
        self._arrived = 0.0  # when the latest bars arrived, by `time.perf_counter`

    def run(self) -> Ended:
        """Trade. Raises UserError if the session cannot continue; a restart continues after the latest bar."""
        session = self._session
        session.feed.start(after=session.state.time)
        self._bar.last.log_unlogged()
        ended = self._follow_requests()  # whatever ended the session before may do so again
        if ended is None and session.orders.protects and session.state.begun:
            session.attempt(self._look_and_protect)
        while ended is None:
            self._beat()
            for sentence in session.undelivered():
                session.record.note_undelivered(sentence)
            ended = self._answer_people() or self._handle_next_event() or self._give_up() or self._follow_requests()
        return ended

    # Events

    def _handle_next_event(self) -> Ended | None:
        session = self._session
        connection = session.connection
        event = session.feed.next(connection.back_off_s if connection.away else session.settings.idle_s)
        self._arrived = time.perf_counter()
        match event:
            case BarSet():
                self._look_for_model()
                if self._bar.observe(event):
                    self._try_to_catch_up()
            case None:
                self._idle()
            case Gap():
                self._note_gap(event)
            case Correction():
                self._note_correction(event)
            case CorporateAction():
                note_action(session, event, self._bar.waiting)
                if session.orders.protects and session.state.begun:
                    session.attempt(self._look_and_protect)
            case End():
                return self._end_of_bars()
        return None

    def _idle(self) -> None:
        session = self._session
        self._look_for_model()  # a bar may be long: a model that is deployed during it decides at its close
        if self._bar.waiting or session.orders.unsent or session.connection.away:
            self._try_to_catch_up()
        elif session.settings.real_time:
            session.attempt(self._look)
        write_status(session, self._bar.last)

    def _note_gap(self, gap: Gap) -> None:
        session = self._session
        sentence = f"Bars are missing from {time_text(gap.first)} to {time_text(gap.last)}: {gap.why}"
        session.record.log_now("gap", session.state.time, **gap._asdict(), sentence=sentence)
        self._bar.note_gap()
        if session.settings.on_gap == "flatten":
            self._follow(ShutdownRequest("gap", "A gap in the bars closes all positions, as configured.", "flatten"))

    def _note_correction(self, correction: Correction) -> None:
        when, which = time_text(correction.bars.time), ", ".join(correction.symbols)
        what = "came late" if correction.late else "was corrected"
        self._session.record.log_now(
            "correction",
            correction.bars.time,
            symbols=correction.symbols,
            late=correction.late,
            **{name: getattr(correction.bars, name) for name in ("open", "high", "low", "close", "volume")},
            sentence=f"A bar of {which or 'a symbol'} at {when} {what}; earlier decisions are unchanged.",
        )

    def _look_for_model(self) -> None:
        """Switch to another model if one can decide at the next bar. It starts from the positions held."""
        session, before, tape = self._session, self._session.model, self._session.runner.tape
        if session.models is None or not tape.n_bars or (ready := session.models.poll(tape.market)) is None:
            return
        session.runner = ready.decider
        session.runner.follow_holdings(session.account.holdings)
        sentence = f"From the next bars on, {ready.version} decides: {ready.why}"
        with session.record.transaction():
            state = session.state
            state.awaiting_previous_model = True
            number, checkpoint = state.number + len(self._bar.waiting), str(session.policy.checkpoint.absolute())
            session.journal.add_model(number, checkpoint, session.policy.version, ready.why)
            state.policy = session.runner.state()
            values = {"from": before, "to": session.model, "why": ready.why, "sentence": sentence}
            session.record.log("model", state.time, **values)

    # Bars and orders

    def _try_to_catch_up(self) -> None:
        session = self._session
        if session.attempt(self._catch_up) or not session.orders.unsent:
            return
        session.attempt(self._settle_unsent)  # an answer was lost: look up the orders now, then with the next bars

    def _catch_up(self) -> None:
        """Close every waiting bar, decide on the last, and send its orders."""
        session, orders = self._session, self._session.orders
        self._bar.show_broker()
        if self._bar.waiting:
            session.clocks.look(self._bar.waiting[-1].closed_at)
        self._settle_unsent()
        if not self._bar.waiting:
            self._look()
            return
        market = session.session_of(self._bar.waiting[-1].closed_at)
        orders.collect()
        move_simulated_money(session)
        self._checked_at = time.monotonic()
        self._bar.close(market, compare(session))
        orders.send()
        if self._bar.last.note_sent(self._arrived):
            write_status(session, self._bar.last)
        if session.orders.protects:
            self._look_and_protect()

    def _look(self) -> None:
        """Compare the clocks, and book what the broker reports. Compare account and books after fills, and every
        minute."""
        session = self._session
        session.clocks.look()
        if not session.state.begun:
            return
        booked = look_and_book(session)
        if (booked and not session.orders.open) or time.monotonic() > self._checked_at + _CHECK_EVERY_S:
            self._checked_at = time.monotonic()
            check_account(session)
        if session.orders.protects:
            self._look_and_protect()

    def _settle_unsent(self) -> None:
        self._session.orders.settle_unsent(self._in_time)

    def _in_time(self, order: OpenOrder) -> bool:
        """Whether an order may still be sent: the bar after its decision has not closed."""
        session, state = self._session, self._session.state
        if self._bar.waiting or state.last is None or order.number != state.number - 1:
            return False
        deadline = order.closed_at + np.timedelta64(session.feed.timing.length, "ns")
        return not session.clocks.now() > deadline

    def _look_and_protect(self, *, closes: bool = True) -> None:
        """Book events, and make the protective orders at the broker fit the positions.

        closes: close positions that the broker refuses to protect.
        """
        session = self._session
        refused: Sequence[Unprotected] | None = None
        for _ in range(_ROUNDS):
            look_and_book(session)
            if (refused := session.orders.protect(session.account)) is not None:
                break
        if refused:
            self._bar.place_unprotected(refused, closes=closes)
            session.orders.send()

    def _end_of_bars(self) -> Ended:
        session = self._session
        for attempt in range(_LAST_ATTEMPTS):
            if not (self._bar.waiting or session.orders.unsent):
                break
            if attempt:
                time.sleep(min(session.connection.back_off_s, 1.0) if session.settings.real_time else 0.0)
            self._try_to_catch_up()
        if (ended := self._follow_requests()) is not None:
            return ended
        ended = self._follow(ShutdownRequest("end_of_bars", "The bars have ended."))
        assert ended is not None
        return ended

    # The end

    def _answer_people(self) -> Ended | None:
        """Handle a user's request, by a signal or through the folder. Returns the end, if it ends the session."""
        if self._stop.requested:
            return self._follow(ShutdownRequest("stop", self._stop.reason or "A stop was requested."))
        request = self._session.requests.poll()
        if request is None or (request.what == "flatten" and self._session.shutdown.closes_down):
            return None
        if request.what == "flatten":
            return self._follow(ShutdownRequest("flatten", request.why)) or self._follow_requests()
        return self._follow(ShutdownRequest("stop", request.why))

    def _follow_requests(self) -> Ended | None:
        """Apply the requests of a failed feature, a guard, a difference or ruin. Returns the end, if any."""
        session, shutdown = self._session, self._session.shutdown
        if session.failure is not None:
            holds = session.settings.on_error == "hold" or not session.state.begun or session.is_flat
            shutdown.request(ShutdownRequest("failed_feature", session.failure, "hold" if holds else "flatten"))
        for request in shutdown.take_requests():
            if (ended := self._follow(request)) is not None:
                return ended
        sells_others = shutdown.closes_down and any(session.state.other_positions.values())  # which count for nothing
        if session.state.begun and session.account.ended and not sells_others:
            return self._follow(ShutdownRequest("ruin", self._why_ended()))
        if shutdown.closes_down and not (
            session.state.begun and (not session.is_flat or session.orders.open or self._bar.waiting)
        ):
            return self._follow(ShutdownRequest("all_closed"))
        return None

    def _why_ended(self) -> str:
        session = self._session
        others = session.quantities.open_positions({s: exact(n) for s, n in session.state.other_positions.items()})
        if others:  # such as a symbol that became another one
            held = ", ".join(f"{quantity_text(n)} {symbol}" for symbol, n in others.items())
            return (
                f"The session has nothing left to trade with: its equity is {session.account.equity:,.2f}, and the "
                f"account holds {held}, which it does not trade; close that, or start another session with --take-over."
            )
        why = "it could not pay what it owed" if session.account.margin_called else "ruin"
        return f"The account was closed: {why}."

    def _give_up(self) -> Ended | None:
        """End the session if the broker has been unreachable for too long."""
        session, settings = self._session, self._session.settings
        if not settings.real_time or session.connection.away_s <= settings.unreachable_for_s:
            return None
        positions: Literal["hold", "flatten"] = "flatten" if session.shutdown.closes_down else settings.on_unreachable
        why = f"The broker cannot be reached: {session.connection.why}"
        return self._follow(
            ShutdownRequest("unreachable", still_unreachable(why, settings.unreachable_for_s, positions), positions)
        )

    def _follow(self, request: ShutdownRequest) -> Ended | None:
        """Enter the phase that a request leads to: place closing orders, or end the session."""
        session, shutdown = self._session, self._session.shutdown
        closed_down = shutdown.closes_down
        phase = shutdown.enter(request)
        if isinstance(phase, Ended):
            cancels = request.cause != "end_of_bars" or session.settings.real_time
            if request.cause == "unreachable" and request.positions == "flatten":
                ask(session.record.folder, "flatten")  # of the next start
            return self._end(phase, cancels=cancels, closed_down=closed_down)
        if isinstance(phase, ClosingDown) and not closed_down and session.state.begun and not self._bar.waiting:
            session.attempt(self._close_positions)
        return None

    def _close_positions(self) -> None:
        """Cancel open orders and place orders that close every position; each later bar closes the rest."""
        session = self._session
        assert session.state.last is not None
        session.orders.settle_unsent(lambda order: False)
        session.orders.collect()
        with session.record.transaction():
            book_all(session)
            self._bar.place_closing(session.state.last)
        session.orders.send()

    def _end(self, phase: Ended, *, cancels: bool, closed_down: bool) -> Ended:
        """Cancel open orders and log the end. closed_down: the session was closing its positions.

        cancels: False at the end of a recording, which may grow later: the last orders stay open, and then fill as in
        a backtest.
        """
        session, state = self._session, self._session.state
        reached, flat, reason = True, True, phase.reason
        if state.begun:
            reached = session.attempt(lambda: self._settle(cancels=cancels))
            flat = session.is_flat
        if not reached:
            reason += " The broker could not be reached to cancel open orders."
        elif not flat and closed_down:
            reason += " Not all positions could be closed."
        else:
            reason += session.quantities.left_over(session.account.positions)
        session.record.log_now("stop", state.time, why=reason, flat=flat, sentence=reason)
        write_status(session, self._bar.last, now=True)
        if not phase.again:
            session.requests.done("flatten" if closed_down else "stop")
        return replace(phase, reason=reason, flat=flat)

    def _settle(self, *, cancels: bool) -> None:
        """Book everything until now. Positions that are held stay protected at the broker."""
        (cancel_and_book if cancels else look_and_book)(self._session)
        if self._session.orders.protects:
            self._look_and_protect(closes=False)
