"""What live.json says of a session: its account, its orders and its model at the last bar."""

import os
from datetime import UTC, datetime
from typing import Any

from ml_pipeline.live.loop.one_bar.last_decision import LastDecision, by_symbol
from ml_pipeline.live.loop.running_session import RunningSession


class Status:
    """Rewrites live.json and decision.json."""

    def __init__(self, session: RunningSession, decision: LastDecision) -> None:
        self._session = session
        self._decision = decision

    def write(self, *, now: bool = False) -> None:
        """now: even if that was done a moment ago."""
        record, decision = self._session.record, self._decision.as_data(self._session.parts.model)
        if now:
            record.write_status_now(self._values(), decision)
        else:
            record.write_status(self._values, decision)

    def _values(self) -> dict[str, Any]:
        session, parts = self._session, self._session.parts
        record, state = session.record, session.state
        return {
            **(parts.about or {}),
            "symbols": session.symbols,
            "bar": state.time,
            "updated": datetime.now(UTC),
            "pid": os.getpid(),
            "start_equity": parts.rules.initial_cash,
            "equity": parts.books.equity if state.begun else None,
            "cash": parts.books.cash if state.begun else None,
            "positions": by_symbol(session.symbols, parts.books.holdings),
            "open_orders": len(session.desk.open),
            "refusals": dict(record.state.refusals),
            "latency_ms": record.latency_figures(),
            "bars": state.number,
            "fills": session.journal.n_fills(),
            "last_sentence": record.last_sentence,
            "model": parts.model,
            "version": parts.version,
            "retrain": parts.retraining(),
        }
