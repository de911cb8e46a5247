"""Requests to Alpaca's trading server that end in time: an answer, a refusal, or "not available now"."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.keys import Keys
from ml_pipeline.live.alpaca.library import alpaca_module, send_by, timed_session, why_no_answer
from ml_pipeline.live.brokers.broker import BrokerUnavailable, TradingSession

_NO_ENTRY = (401,)
TOO_MANY, SERVER_ERRORS = 429, 500
"""The status after which a request is tried again later, and the first of those of a server that has failed."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 1.0
_EXCHANGE = ZoneInfo("America/New_York")
_KEPT_S = 300.0


class Refused(BrokerUnavailable):
    """Alpaca's answer is no. code: its own number of the reason, 0 where it gives none."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"Alpaca answers {status}: {message}")
        self.status, self.code, self.message = status, code, message


class RestClient:
    """Answers as plain data, in which Alpaca writes quantities and money as texts: no digit is lost.

    timeout_s: the longest time that one call takes altogether, waits after 429 included.
    """

    def __init__(self, keys: Keys, *, live: bool, url: str | None, timeout_s: float) -> None:
        library = alpaca_module("trading.client")
        self._errors = alpaca_module("common.exceptions")
        self._client = library.TradingClient(
            keys.key_id, keys.secret_key, paper=not live, raw_data=True, url_override=url.rstrip("/") if url else None
        )
        self._session = timed_session()
        send_by(self._session, self._client)
        self._timeout_s = timeout_s
        self._account = "live" if live else "paper"

    def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """Asked again where the server fails, for asking changes nothing. Raises Refused and BrokerUnavailable."""
        return self._call("GET", path, dict(parameters or {}), again_after_failure=True)

    def post(self, path: str, content: Mapping[str, Any]) -> Any:
        """Asked once. After BrokerUnavailable it is unknown whether the server did it."""
        return self._call("POST", path, dict(content), again_after_failure=False)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path, {}, again_after_failure=True)

    def close(self) -> None:
        self._session.close()

    def _call(self, method: str, path: str, content: dict[str, Any], *, again_after_failure: bool) -> Any:
        limit = TimeLimit(self._timeout_s)
        while True:
            try:
                return self._once(method, path, content, limit.end)
            except Refused as refused:
                failed = refused.status >= SERVER_ERRORS
                if not failed and refused.status != TOO_MANY:
                    raise
                why = f"answers {refused.status}"
                # After 429 nothing was done; after 500 it may have been.
                last = failed and not again_after_failure
            except _NoAnswer as error:
                why, last = str(error), not again_after_failure
            if last or not limit.wait():
                raise BrokerUnavailable(f"Alpaca's trading server {why} ({method} {path}).") from None

    def _once(self, method: str, path: str, content: dict[str, Any], end: float) -> Any:
        self._session.deadline.end = end
        failure: Exception
        try:
            if method == "GET":
                return self._client.get(path, content)
            return self._client.post(path, content) if method == "POST" else self._client.delete(path)
        except self._errors.APIError as error:
            failure = _refusal(error.status_code or 0, str(error), self._account)
        except OSError as error:
            failure = _NoAnswer(why_no_answer(error, self._timeout_s))
        raise failure  # out here, so that it does not hold the error above, whose request holds the keys


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


class TimeLimit:
    """From now on, so many seconds. end: by `time.monotonic`."""

    def __init__(self, timeout_s: float) -> None:
        self.end = time.monotonic() + timeout_s
        self._wait_s = _FIRST_WAIT_S

    def wait(self) -> bool:
        """Wait before the next attempt, ever longer; False at once where there is no time for it."""
        if time.monotonic() + self._wait_s > self.end:
            return False
        time.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        return True


def time_of(text: str) -> np.datetime64:
    """A time that Alpaca writes, to the nanosecond where it is in UTC.

    >>> time_of("2024-03-01T14:30:00.123456789Z"), time_of("2024-03-01T09:30:00-05:00")
    (np.datetime64('2024-03-01T14:30:00.123456789'), np.datetime64('2024-03-01T14:30:00.000000000'))
    """
    if text.endswith("Z"):
        return np.datetime64(text[:-1], "ns")
    moment = datetime.fromisoformat(text)
    return np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "ns")


def _session(day: dict[str, Any]) -> TradingSession:
    return TradingSession(_utc(day["date"], day["open"]), _utc(day["date"], day["close"]))


def _utc(date: str, clock: str) -> np.datetime64:
    """A time of the exchange's day, such as 09:30 or 0930."""
    digits = clock.replace(":", "")
    local = datetime.fromisoformat(f"{date}T{digits[:2]}:{digits[2:4]}").replace(tzinfo=_EXCHANGE)
    return np.datetime64(local.astimezone(ZoneInfo("UTC")).replace(tzinfo=None), "ns")


def _wall() -> np.datetime64:
    return np.datetime64(time.time_ns(), "ns")


class _NoAnswer(Exception):
    """No answer came, or none that can be read."""


def _refusal(status: int, text: str, account: str) -> Refused | UserError:
    code, message = 0, text.strip()[:300]
    try:
        answer = json.loads(text)
        code, message = int(answer.get("code") or 0), str(answer.get("message") or message)
    except (ValueError, AttributeError, TypeError):
        pass
    # An order that is refused has a code of its own; keys that are refused have none, or that of 401.
    if status in _NO_ENTRY or (status == 403 and code // 100_000 != 403):
        return UserError(
            f"Alpaca's {account} account does not take these keys (it answers {status}); check that they are the keys "
            f"of the {account} account and have not been replaced by newer ones."
        )
    return Refused(status, code, message)
