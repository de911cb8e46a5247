"""The market's session that a time lies in, by the broker's calendar."""

from collections.abc import Iterable

import numpy as np

from ml_pipeline.live.brokers.broker import Broker, TradingSession


def session_near(sessions: Iterable[TradingSession], time: np.datetime64) -> TradingSession | None:
    """The session that `time` lies in, its close included; else the nearest one; None where there is none.

    >>> day = TradingSession(np.datetime64("2026-11-27T14:30"), np.datetime64("2026-11-27T18:00"))
    >>> session_near([day], np.datetime64("2026-11-27T20:00")) == day
    True
    """

    def distance(session: TradingSession) -> np.timedelta64:
        return max(session.opens - time, time - session.closes, np.timedelta64(0, "ns"))

    return min(sessions, key=distance, default=None)


class SessionTimes:
    """`session_near` among those that the broker tells; it is asked once for a week."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: tuple[np.datetime64, np.datetime64] | None = None
        self._sessions: list[TradingSession] = []

    def __call__(self, time: np.datetime64) -> TradingSession | None:
        """None where the market never closes. Raises BrokerUnavailable."""
        day = time.astype("datetime64[D]")
        if self._known is None or not self._known[0] < day < self._known[1]:
            first, last = day - np.timedelta64(7, "D"), day + np.timedelta64(7, "D")
            self._sessions = self._broker.sessions(first, last)
            self._known = first, last
        return session_near(self._sessions, time)
