"""Process one bar of a session: observe, close, decide, place.

All effects of a set of bars are one transaction of the journal, its orders included, which are sent afterwards. After a
kill, a bar is therefore either not begun, or closed with its orders on disk, to be looked up at the broker by ID.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.account_check import Comparison, act_on, without_announced
from ml_pipeline.live.booking import book, by_bar
from ml_pipeline.live.brokers.broker import BrokerEvent, Charge, TradingSession
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.corporate_actions import awaited_splits
from ml_pipeline.live.decisions.deployed_policy import ImpossibleAction
from ml_pipeline.live.decisions.policy_runner import Decision
from ml_pipeline.live.feeds.hours import BarCalendar
from ml_pipeline.live.orders import closing_orders
from ml_pipeline.live.protection import Unprotected
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.risk.guard import Refusal, Verdict, strongest
from ml_pipeline.live.shutdown import ShutdownRequest
from ml_pipeline.live.sizing import size_orders
from ml_pipeline.live.status import LastDecision, by_symbol, in_ms, listed
from ml_pipeline.trading.accounts.ledger import LedgerRow
from ml_pipeline.trading.market.bar_set import BarSet


class BarProcessor:
    """Processes each set of bars, from the feed to its orders.

    waiting: bars that are not booked yet, oldest first. last: the last decision, for the log and decision.json.
    """

    def __init__(self, session: SessionComponents) -> None:
        self._session = session
        self._calendar = BarCalendar(session.feed.times_after, session.feed.timing)
        self.last = LastDecision(session.record, session.symbols)
        self.waiting: list[BarSet] = []
        self._n_shown = 0  # number of waiting bars that the broker has seen
        before = () if session.state.begun else session.journal.bars()
        self._spreads = deque((bars.half_spread for bars in before), maxlen=session.policy.window)
        self._whole_since_gap: int | None = None  # complete bars since a gap; None: no gap within the policy's window

    # Observe

    def observe(self, bars: BarSet) -> bool:
        """Observe the bars. Returns True if they wait to be booked, False if they only warm features up."""
        session, state = self._session, self._session.state
        bars = session.guards.sift(bars)
        is_complete = self._is_complete(bars)
        self._spreads.append(bars.half_spread)
        if self._whole_since_gap is not None:
            self._whole_since_gap = self._whole_since_gap + 1 if bars.present.all() else 0
            if self._whole_since_gap >= session.policy.window:
                self._whole_since_gap = None
        if state.begun or self.waiting or is_complete:
            self.waiting.append(bars)
            return True
        session.guards.note_history(bars)
        session.account.warm_up(bars)
        session.attempt(lambda: session.broker.market_closed_bar(bars))
        with session.record.transaction():
            session.record.add_bar(state.number, bars, None)
            state.note_bar(bars)
            state.account, state.guards = session.account.state(), session.guards.state()
        return False

    def _is_complete(self, bars: BarSet) -> bool:
        """Whether the policy's window is complete; False after a feature has failed, so nothing more is decided."""
        session = self._session
        if session.failure is None:
            try:
                return session.runner.observe(bars)
            except UserError as error:
                session.failure = str(error)
        return False

    def note_gap(self) -> None:
        """After a gap, nothing can be decided until a whole window of bars has arrived."""
        self._whole_since_gap = 0

    def show_broker(self) -> None:
        """Show the broker each waiting bar once. Raises BrokerUnavailable."""
        for bars in self.waiting[self._n_shown :]:
            self._session.broker.market_closed_bar(bars)
            self._n_shown += 1

    # Close

    def close(self, market: TradingSession | None, compared: Comparison) -> None:
        """In one transaction: book events, close the waiting bars, decide on the last one, and record its orders.

        market: the market session of that bar. compared: the account with the books and the received events.
        """
        session, state = self._session, self._session.state
        waiting, self.waiting, self._n_shown = self.waiting, [], 0
        started = time.perf_counter()
        with session.record.transaction():
            compared = without_announced(session, compared)
            events = by_bar(session.orders.take_events(), [bars.closed_at for bars in waiting])
            for bars, of_bar in zip(waiting, events, strict=True):
                row = self._close_one(bars, of_bar)
                if bars is not waiting[-1]:
                    self._note_undecided(bars, "the broker could not be reached in time")
            act_on(session, compared)
            closing_s = time.perf_counter() - started
            if compared.rows and session.settings.on_difference != "take-over" and not session.shutdown.closes_down:
                self._note_undecided(waiting[-1], "the account differs from the books")
            else:
                self._decide_or_say_why_not(waiting[-1], row, market, closing_s)
            state.account, state.guards = session.account.state(), session.guards.state()
            state.policy = session.runner.state()

    def _close_one(self, bars: BarSet, events: Sequence[BrokerEvent]) -> LedgerRow:
        session, state = self._session, self._session.state
        for event in events:
            # Charges of 0 belong to bars before the first row.
            if state.begun or not (isinstance(event, Charge) and not event.amount):
                book(session, event)
        row = session.account.close_bar(bars, closing=state.closing_ordered)
        state.leave_flow_out(row.equity)
        if state.begun:
            # If nothing was decided, or all was closed by market orders, no choice is undone: everything counts as
            # filled.
            lapses = state.decided and not state.closing_ordered
            filled = row.filled if lapses else [1.0] * len(session.symbols)
            expired = session.orders.take_expired()
            open_symbols = (order.request.symbol for order in session.orders.open)
            waiting = filter(session.orders.trades, open_symbols)
            session.runner.note_settled(
                expired, filled=filled, exited=row.exited, holdings=row.positions, waiting=waiting
            )
        if state.awaiting_previous_model:
            session.runner.follow_holdings(row.positions)
            state.awaiting_previous_model = False
        if not state.begun and row.half_spreads is not None:
            # Before the first fill, an evaluation writes the spreads of the oldest bar of its first window.
            oldest = self._spreads[0]
            row = row._replace(half_spreads=row.half_spreads if oldest is None else np.nan_to_num(oldest).tolist())
        state.begun, state.decided, state.closing_ordered = True, False, False
        session.record.add_bar(state.number, bars, row)
        state.note_bar(bars)
        return row

    # Decide

    def _decide_or_say_why_not(
        self, bars: BarSet, row: LedgerRow, market: TradingSession | None, closing_s: float
    ) -> None:
        """Decide, or log the reason not to; the guards of the account run in any case.

        row: of the ledger. closing_s: seconds spent on closing the bars.
        """
        session = self._session
        if session.account.ended and not session.shutdown.closes_down:
            return  # the session ends too
        if session.shutdown.closes_down:
            self.place_closing(bars)
        elif session.failure is not None:
            self._note_undecided(bars, session.failure.rstrip("."))
        elif splits := awaited_splits(session):
            self._note_undecided(bars, f"the account does not have the split of {', '.join(splits)} yet")
        elif bars.late:
            session.guards.note_history(bars)
            self._note_undecided(bars, "they came after the next ones had begun", event="late")
            self._obey([session.guards.on_account(session.account, bars.time)], bars)
        elif self._whole_since_gap is not None:
            self._note_undecided(bars, "bars are missing before them")
            self._obey(self._judged(bars, market), bars)
        else:
            self._decide(bars, row, market, closing_s)

    def _note_undecided(self, bars: BarSet, why: str, *, event: Literal["missed", "late"] = "missed") -> None:
        sentence = f"Nothing was decided on the bars of {time_text(bars.time)}: {why}."
        self._session.record.log(event, bars.time, sentence=sentence)

    def _judged(self, bars: BarSet, market: TradingSession | None) -> list[Verdict]:
        """The verdicts of the guards on the bars and the account."""
        session = self._session
        return [
            session.guards.on_bars(bars, session.clocks.now(), market, clock_ahead_s=session.clocks.ahead_s),
            session.guards.on_account(session.account, bars.time),
        ]

    def _decide(self, bars: BarSet, row: LedgerRow, market: TradingSession | None, closing_s: float) -> None:
        session, state = self._session, self._session.state
        now = session.clocks.now()
        before = time.perf_counter()
        verdicts = self._judged(bars, market)
        closing = self._must_close(bars)
        try:
            decision = session.runner.decide(session.account.weights(session.policy.clip), closing=closing)
        except ImpossibleAction as error:
            action = self._obey([*verdicts, _impossible(error, bars)], bars)
            if closing and action != "flatten":  # the rules close positions regardless of the policy
                self.place_closing(bars)
            return
        state.decided = True
        decided = time.perf_counter()
        verdicts.append(session.guards.on_decision(decision))
        action = self._obey(verdicts, bars)
        if action == "trade" or (action == "hold" and decision.closing):  # "hold" does not stop closing orders
            self._place(decision, bars)
            state.closing_ordered = closing
        elif action == "hold":
            traded = zip(session.symbols, decision.may_trade, strict=True)
            session.orders.note_expired(symbol for symbol, may in traded if may)
        weights = list(decision.weights)
        session.journal.add_decision(state.number - 1, session.model, listed(decision.action), weights)
        ready = time.perf_counter()
        self._note(decision, bars, row, {
            "feed": in_ms((now - bars.closed_at) / np.timedelta64(1, "s")) if session.settings.real_time else None,
            "books": in_ms(closing_s),
            "policy": in_ms(decided - before),
            "orders": in_ms(ready - decided),
        })  # fmt: skip

    def _must_close(self, bars: BarSet) -> bool:
        """Whether the rules close all positions with this bar's orders, the last ones filled in a market session."""
        rules = self._session.rules
        return rules.flat_at_close and self._calendar.last_fill_of_session(bars.time, at_close=rules.fill_at == "close")

    def _obey(self, verdicts: Sequence[Verdict], bars: BarSet) -> Literal["trade", "hold", "flatten"]:
        """Apply the verdicts: log refusals, close all positions if one requires it, and request the end if one does."""
        session = self._session
        for verdict in verdicts:
            self._note_refusals(verdict.refusals, bars)
        action = strongest(verdict.action for verdict in verdicts)
        if action == "flatten":
            session.orders.note_expired(session.symbols)
            self.place_closing(bars)
        ends = next((verdict.ends for verdict in verdicts if verdict.ends is not None), None)
        if ends is not None and action == "flatten":
            session.shutdown.enter(ShutdownRequest("guard", ends, "flatten"))
        elif ends is not None:
            session.shutdown.request(ShutdownRequest("guard", ends, "hold"))
        return action

    def _note(self, decision: Decision, bars: BarSet, row: LedgerRow, latency_ms: dict[str, Any]) -> None:
        """Store the decision for decision.json, and for live.jsonl after its orders are sent."""
        session = self._session
        values = {
            "equity": row.equity,
            "cash": row.cash,
            "positions": by_symbol(session.symbols, row.positions),
            "weights": by_symbol(session.symbols, session.account.weights(session.policy.clip)),
            "action": listed(decision.action),
            "targets": by_symbol(session.symbols, decision.weights),
            "model": session.model,
            "latency_ms": latency_ms,
        }
        self.last.note(decision, bars, values)

    # Place: record orders within the transaction of their bars; nothing is sent here

    def _place(self, decision: Decision, bars: BarSet) -> None:
        """Record the orders of a decision: those that the guards allow, and those that they refuse."""
        session = self._session
        number, closes = session.state.number - 1, session.state.closes.tolist()
        wanted = size_orders(
            decision,
            books=session.account,
            terms=session.terms,
            session_id=session.settings.session_id,
            sizes_at_fill=session.broker.sizes_at_fill,
            quantities=session.broker.quantities,
        )
        orders, refusals = session.guards.on_orders(wanted, session.account, closes, session.clocks.now())
        self._note_refusals(refusals, bars)
        allowed = {order.client_order_id for order in orders}
        refused = [order for order in wanted if order.client_order_id not in allowed]
        for order in refused:
            reason = next((each.sentence for each in refusals if each.symbol in {order.symbol, None}), "a guard")
            session.orders.refuse(number, [order], reason)
        if orders and refused and session.broker.sizes_at_fill and not decision.closing:
            # Refused orders still count in the sum that max_gross limits.
            orders[0] = orders[0]._replace(targets=tuple(map(float, decision.weights)))
        session.orders.write(number, orders, bars, closes)

    def place_closing(self, bars: BarSet) -> None:
        """Record orders that close every position."""
        session, state = self._session, self._session.state
        held, session_id = session.positions, session.settings.session_id
        orders = closing_orders(held, session.quantities, session_id=session_id, bar_time=bars.time)
        session.orders.write(state.number - 1, orders, bars, state.closes.tolist())
        state.closing_ordered = state.awaiting_previous_model = True

    def place_unprotected(self, refused: Sequence[Unprotected], *, closes: bool) -> None:
        """Alert that the broker refuses the stop or target of these positions.

        closes: also record orders that close them; under the rules, no position is held without its stop and target.
        """
        session, state = self._session, self._session.state
        assert state.last is not None
        done = "so it is closed" if closes else "and it is held"
        held = {position.symbol: position.quantity for position, _ in refused} if closes else {}
        session_id, time = session.settings.session_id, state.last.time
        orders = closing_orders(held, session.quantities, session_id=session_id, bar_time=time)
        with session.record.transaction():
            for position, reason in refused:
                sentence = f"The broker refuses a stop or target for {position.symbol}, {done}: {reason}."
                session.record.log("alert", state.time, symbol=position.symbol, sentence=sentence)
            session.orders.write(state.number - 1, orders, state.last, state.closes.tolist())
            state.awaiting_previous_model = state.awaiting_previous_model or closes

    def _note_refusals(self, refusals: Sequence[Refusal], bars: BarSet) -> None:
        """Log the refusals of guards, and count those that are not warnings."""
        record = self._session.record
        for refusal in refusals:
            values = {name: value for name, value in refusal._asdict().items() if name != "warning"}
            if refusal.warning:
                record.log("alert", bars.time, **values)
            else:
                record.state.refusals[refusal.guard] += 1
                record.log("refusal", bars.time, **values)


def _impossible(error: Exception, bars: BarSet) -> Verdict:
    """The verdict of the guard on decisions, for an action that raised an error."""
    sentence = f"Nothing is ordered on the bars of {time_text(bars.time)}: {error}"
    return Verdict((Refusal("impossible_action", None, float("nan"), float("nan"), sentence),), "hold")
