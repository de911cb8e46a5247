"""Guards on time: bars that are too old, a market that is closed, a session that ends early."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml_pipeline.config.wording import lasting
from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.live.guards.guard import Guard, Moment
from ml_pipeline.live.guards.guard_config import Response
from ml_pipeline.live.guards.verdict import TRADE, Refusal, Verdict
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.times import as_text

_SECOND = np.timedelta64(1, "s")
_SHORTER = 0.9
"""A session below this part of the usual length ends early."""


def usual_length_s(sessions: Sequence[TradingSession]) -> float | None:
    """The median length of sessions, in seconds; None without any."""
    lengths = [_seconds(session.closes - session.opens) for session in sessions]
    return float(np.median(lengths)) if lengths else None


class StaleData(Guard):
    """Bars that closed too long ago, or that came once the next one had opened; or a clock that is wrong."""

    name = "guard_stale_s"

    def __init__(self, oldest_s: float) -> None:
        self._oldest_s = oldest_s

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        age_s = _seconds(moment.now - bars.closed_at)
        if bars.late:
            sentence = f"Nothing is ordered: the bars came {lasting(age_s)} after they closed, when others had opened."
        elif np.isnan(age_s) or age_s > self._oldest_s:
            sentence = (
                f"Nothing is ordered: the bars closed {lasting(age_s)} ago, and {self.name} is {self._oldest_s:g} s."
            )
        elif age_s < -self._oldest_s:
            sentence = (
                f"Nothing is ordered: the bars close {lasting(-age_s)} from now by the broker's clock, so that one "
                f"of the clocks is wrong; {self.name} is {self._oldest_s:g} s."
            )
        else:
            return TRADE
        return Verdict((Refusal(self.name, None, age_s, self._oldest_s, sentence),), "hold")


class ClosedMarket(Guard):
    """Bars outside the market's session. What is decided on its last bar may be filled when it opens again."""

    name = "closed_market"

    def __init__(self, bar_ns: int) -> None:
        """bar_ns: the length of a bar."""
        self._bar = np.timedelta64(bar_ns, "ns")

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        session = moment.session
        if session is None or (session.opens < bars.closed_at and bars.closed_at - self._bar < session.closes):
            return TRADE
        early = bars.closed_at <= session.opens
        edge = session.opens if early else session.closes
        sentence = (
            f"Nothing is ordered: the bars closed at {as_text(bars.closed_at)} UTC, when the market was closed; "
            f"the nearest session {'begins' if early else 'ended'} at {as_text(edge)} UTC."
        )
        far_s = abs(_seconds(bars.closed_at - edge))
        return Verdict((Refusal(self.name, None, far_s, 0.0, sentence),), "hold")


class HalfDay(Guard):
    """A session that is shorter than usual: as the setting says, it is told once, or positions are held or closed."""

    name = "guard_half_day"

    def __init__(self, response: Response, usual_s: float | None) -> None:
        """usual_s: the usual length of a session; None: the longest one that was met."""
        self._response = response
        self._known_s = usual_s
        self._longest_s = 0.0
        self._told: np.datetime64 | None = None

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        session = moment.session
        if session is None:
            return TRADE
        length_s = _seconds(session.closes - session.opens)
        self._longest_s = max(self._longest_s, length_s)
        usual_s = self._known_s or self._longest_s
        if length_s >= _SHORTER * usual_s or (self._response == "warn" and self._told == session.opens):
            return TRADE
        self._told = session.opens
        done = {"warn": "", "hold": "; positions are held", "flatten": "; positions are closed"}[self._response]
        sentence = (
            f"The market closes early, at {as_text(session.closes)} UTC: its session lasts {length_s / 3_600:.4g} h "
            f"where {usual_s / 3_600:.4g} h are usual{done}."
        )
        told = Refusal(self.name, None, length_s, usual_s, sentence, warning=self._response == "warn")
        return Verdict((told,), "trade" if self._response == "warn" else self._response)

    def state(self) -> dict[str, Any]:
        return {"longest_s": self._longest_s, "told": None if self._told is None else str(self._told)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._longest_s = state["longest_s"]
        self._told = None if state["told"] is None else np.datetime64(state["told"])


def _seconds(span: np.timedelta64) -> float:
    return float(span / _SECOND)
