"""Writes down the orders of a decision, those that close all positions, and what guards refused of them."""

from collections.abc import Sequence

from ml_pipeline.live.decisions.policy_runner import Decision
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.live.orders import closing_orders
from ml_pipeline.live.risk.guard import Refusal
from ml_pipeline.trading.market.bar_set import BarSet


class OrderWriting:
    """Writes down orders of the latest bars, within the transaction of these; nothing is sent by it."""

    def __init__(self, session: RunningSession) -> None:
        self._session = session
        self._desk = session.desk

    def write(self, decision: Decision, bars: BarSet) -> None:
        """The orders of a decision that guards allow, and those that they refuse."""
        session, parts = self._session, self._session.parts
        number, closes = session.state.number - 1, session.state.closes.tolist()
        wanted = parts.size(decision, session_id=session.settings.session_id)
        orders, refusals = parts.guards.on_orders(wanted, parts.books, closes, parts.feed.now())
        self.note_refusals(refusals, bars)
        allowed = {order.client_order_id for order in orders}
        refused = [order for order in wanted if order.client_order_id not in allowed]
        for order in refused:
            reason = next((each.sentence for each in refusals if each.symbol in {order.symbol, None}), "a guard")
            self._desk.refuse(number, [order], reason)
        if orders and refused and parts.broker.sizes_at_fill and not decision.closing:
            # What is not ordered still counts in the sum that max_gross bounds.
            orders[0] = orders[0]._replace(targets=tuple(map(float, decision.weights)))
        self._desk.write(number, orders, bars, closes)

    def write_closing(self, bars: BarSet) -> None:
        """Orders that close every position."""
        session, state = self._session, self._session.state
        held = zip(session.symbols, session.parts.books.holdings, strict=True)
        session_id = session.settings.session_id
        orders = closing_orders(held, session_id=session_id, bar_time=bars.time, purpose="flatten")
        self._desk.write(state.number - 1, orders, bars, state.closes.tolist())
        state.closing_ordered = True
        state.awaiting_previous_model = True

    def note_refusals(self, refusals: Sequence[Refusal], bars: BarSet) -> None:
        """What guards say against the bars, the account, a decision or its orders."""
        record = self._session.record
        for refusal in refusals:
            values = {name: value for name, value in refusal._asdict().items() if name != "warning"}
            if refusal.warning:
                record.log("alert", bars.time, **values)
            else:
                record.state.refusals[refusal.guard] += 1
                record.log("refusal", bars.time, **values)
