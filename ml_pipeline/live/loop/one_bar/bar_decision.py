"""The decision on one bar: what guards say, what the policy wants, and its orders, written down."""

import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.live.decisions.deployed_policy import ImpossibleAction
from ml_pipeline.live.decisions.policy_runner import Decision
from ml_pipeline.live.feeds.hours import BarCalendar
from ml_pipeline.live.loop.one_bar.last_decision import LastDecision, by_symbol, in_ms, listed
from ml_pipeline.live.loop.one_bar.order_writing import OrderWriting
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.risk.guard import Refusal, Verdict, strongest
from ml_pipeline.trading.accounts.ledger import LedgerRow
from ml_pipeline.trading.market.bar_set import BarSet


class BarDecision:
    """Decides on the latest bars, within the transaction that closes them."""

    def __init__(self, session: RunningSession, writing: OrderWriting, last: LastDecision) -> None:
        self._session = session
        self._writing = writing
        self._last = last
        self._calendar = BarCalendar(session.parts.feed.times_after, session.parts.feed.timing)

    def after_close(
        self, bars: BarSet, row: LedgerRow, market: TradingSession | None, *, closing_s: float, after_gap: bool
    ) -> None:
        """Decide, unless something speaks against it; guards of the account are asked in any case.

        row: of the ledger. market: the market's session. closing_s: what closing the bars took. after_gap: whether
        bars are missing in the window.
        """
        parts = self._session.parts
        if parts.books.ended:
            return  # and so does the loop
        if self._session.demanded.closing_down is not None:
            self._writing.write_closing(bars)
        elif parts.failure is not None:
            self.note_undecided(bars, parts.failure.rstrip("."))
        elif bars.late:
            parts.guards.note_history(bars)
            self.note_undecided(bars, "they came after the next ones had begun", event="late")
            self._obey([parts.guards.on_account(parts.books, bars.time)], bars)
        elif after_gap:
            self.note_undecided(bars, "bars are missing before them")
            self._obey(self._judged(bars, market), bars)
        else:
            self._decide(bars, row, market, closing_s)

    def note_undecided(self, bars: BarSet, why: str, *, event: Literal["missed", "late"] = "missed") -> None:
        sentence = f"Nothing was decided on the bars of {time_text(bars.time)}: {why}."
        self._session.record.log(event, bars.time, sentence=sentence)

    def _judged(self, bars: BarSet, market: TradingSession | None) -> list[Verdict]:
        """What guards say about the bars and the account."""
        parts = self._session.parts
        return [
            parts.guards.on_bars(bars, parts.feed.now(), market),
            parts.guards.on_account(parts.books, bars.time),
        ]

    def _obey(self, verdicts: Sequence[Verdict], bars: BarSet) -> Literal["trade", "hold", "flatten"]:
        """Note what guards refused, close all positions if one of them says so, and end what they end."""
        for verdict in verdicts:
            self._writing.note_refusals(verdict.refusals, bars)
        action = strongest(verdict.action for verdict in verdicts)
        if action == "flatten":
            self._session.desk.note_lapsed(self._session.symbols)
            self._writing.write_closing(bars)
        ends = next((verdict.ends for verdict in verdicts if verdict.ends is not None), None)
        if ends is not None:
            if action == "flatten":
                self._session.demanded.closing_down = ends
            else:
                self._session.demanded.ended_by = ends
        return action

    def _decide(self, bars: BarSet, row: LedgerRow, market: TradingSession | None, closing_s: float) -> None:
        session, parts = self._session, self._session.parts
        now = parts.feed.now()
        before = time.perf_counter()
        verdicts = self._judged(bars, market)
        closing = self._must_close(bars)
        try:
            decision = parts.decider.decide(parts.books.weights(parts.clip), closing=closing)
        except ImpossibleAction as error:
            action = self._obey([*verdicts, _impossible(error, bars)], bars)
            if closing and action != "flatten":  # the rules close positions, whatever the policy says
                self._writing.write_closing(bars)
            return
        session.state.decided = True
        decided = time.perf_counter()
        verdicts.append(parts.guards.on_decision(decision))
        action = self._obey(verdicts, bars)
        if action == "trade" or (action == "hold" and decision.closing):  # which guards let pass
            self._writing.write(decision, bars)
            session.state.closing_ordered = closing
        elif action == "hold":
            traded = zip(session.symbols, decision.may_trade, strict=True)
            session.desk.note_lapsed(symbol for symbol, may in traded if may)
        weights = list(decision.weights)
        session.journal.add_decision(session.state.number - 1, parts.model, listed(decision.action), weights)
        ready = time.perf_counter()
        self._note(decision, bars, row, {
            "feed": in_ms((now - bars.closed_at) / np.timedelta64(1, "s")) if session.settings.real_time else None,
            "books": in_ms(closing_s),
            "policy": in_ms(decided - before),
            "orders": in_ms(ready - decided),
        })  # fmt: skip

    def _must_close(self, bars: BarSet) -> bool:
        """Whether the rules close all positions with this bar's orders, the last to be filled in a session."""
        rules = self._session.parts.rules
        return rules.flat_at_close and self._calendar.last_fill_of_session(bars.time, at_close=rules.fill_at == "close")

    def _note(self, decision: Decision, bars: BarSet, row: LedgerRow, latency_ms: dict[str, Any]) -> None:
        """The last decision for live.jsonl, written once its orders are sent, and for decision.json."""
        symbols, parts = self._session.symbols, self._session.parts
        values = {
            "equity": row.equity,
            "cash": row.cash,
            "positions": by_symbol(symbols, row.positions),
            "weights": by_symbol(symbols, parts.books.weights(parts.clip)),
            "action": listed(decision.action),
            "targets": by_symbol(symbols, decision.weights),
            "model": parts.model,
            "latency_ms": latency_ms,
        }
        self._last.note(decision, bars, values)


def _impossible(error: Exception, bars: BarSet) -> Verdict:
    """As the guard on decisions says it of an action that is there."""
    sentence = f"Nothing is ordered on the bars of {time_text(bars.time)}: {error}"
    return Verdict((Refusal("impossible_action", None, float("nan"), float("nan"), sentence),), "hold")
