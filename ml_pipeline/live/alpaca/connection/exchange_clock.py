"""When the market is open, and what time it is, by Alpaca's calendar and clock."""

import time
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from ml_pipeline.live.alpaca.connection.rest_client import RestClient
from ml_pipeline.live.alpaca.connection.times import time_of
from ml_pipeline.live.brokers.broker import TradingSession

_EXCHANGE = ZoneInfo("America/New_York")
_KEPT_S = 300.0


class ExchangeClock:
    """Alpaca's clock is asked every five minutes, and its calendar once for each span of days."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._offset: np.timedelta64 | None = None
        self._asked = 0.0
        self._sessions: dict[tuple[str, str], list[TradingSession]] = {}

    def now(self) -> np.datetime64:
        """UTC, nanoseconds."""
        if self._offset is None or time.monotonic() - self._asked > _KEPT_S:
            before = _wall()
            theirs = time_of(self._rest.get("/clock")["timestamp"])
            # The answer was written somewhere between question and answer.
            self._offset, self._asked = theirs - (before + (_wall() - before) // 2), time.monotonic()
        return _wall() + self._offset

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        """The sessions between two days, both included; half days end early, and holidays have none."""
        days = str(first.astype("datetime64[D]")), str(last.astype("datetime64[D]"))
        if days not in self._sessions:
            answer = self._rest.get("/calendar", {"start": days[0], "end": days[1]})
            self._sessions[days] = [_session(each) for each in answer]
        return self._sessions[days]


def _session(day: dict[str, Any]) -> TradingSession:
    return TradingSession(_utc(day["date"], day["open"]), _utc(day["date"], day["close"]))


def _utc(date: str, clock: str) -> np.datetime64:
    """A time of the exchange's day, such as 09:30 or 0930."""
    digits = clock.replace(":", "")
    local = datetime.fromisoformat(f"{date}T{digits[:2]}:{digits[2:4]}").replace(tzinfo=_EXCHANGE)
    return np.datetime64(local.astimezone(ZoneInfo("UTC")).replace(tzinfo=None), "ns")


def _wall() -> np.datetime64:
    return np.datetime64(time.time_ns(), "ns")
