"""Requests to Alpaca's trading server that end in time, with an answer, a refusal, or BrokerUnavailable."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.keys import Keys
from ml_pipeline.live.alpaca.library import alpaca_module, send_by, timed_session, why_no_answer
from ml_pipeline.live.brokers.broker import BrokerUnavailable, TradingSession, UnreadableAnswer

_NO_ENTRY = (401,)
TOO_MANY, SERVER_ERRORS = 429, 500
"""The status after which a request is retried later, and the first status of server errors."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 1.0
_EXCHANGE = ZoneInfo("America/New_York")
_KEPT_S = 60.0
"""Longest time for which an answer of the clock is used."""
_STEP_S = 1.0
"""If this machine's clock gains or loses more against its running time, it was set, or the machine was suspended."""


class Refused(BrokerUnavailable):
    """Alpaca refused the request. code: Alpaca's number of the reason, 0 if there is none."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"Alpaca answers {status}: {message}")
        self.status, self.code, self.message = status, code, message


class KeysRefused(BrokerUnavailable, UserError):
    """Alpaca refused the keys: invalid input at a first start, and while a session trades an outage that may pass."""


class RestClient:
    """Answers as plain data. Alpaca writes quantities and money as text, so no digit is lost.

    timeout_s: the longest time of one call, including waits after status 429.
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
        """Retried after a server error, because reading changes nothing. Raises Refused and BrokerUnavailable."""
        return self._call("GET", path, dict(parameters or {}), again_after_failure=True)

    def post(self, path: str, content: Mapping[str, Any]) -> Any:
        """Sent once. After BrokerUnavailable it is unknown whether the server executed it."""
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
                # After 429 the request was not executed; after 500 it may have been.
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
        raise failure  # outside the handler, so that it has no reference to the error, whose request has the keys


class ExchangeClock:
    """Alpaca's clock, requested every minute, and its calendar, requested once for each span of days.

    Between two requests it advances with this machine's running time, so setting this machine's clock does not move it.
    """

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._read: _ClockReading | None = None
        self._sessions: dict[tuple[str, str], list[TradingSession]] = {}

    def now(self) -> np.datetime64:
        """UTC, nanoseconds."""
        read = self._read
        if read is None or read.is_old():
            before = _ran_s()
            answer = self._rest.get("/clock")
            answered = _ran_s()
            with reading("clock", answer):
                theirs = time_of(answer["timestamp"])
            # The server read its clock between the request and the answer.
            half_way = np.timedelta64(round((answered - before) / 2 * 1e9), "ns")
            read = self._read = _ClockReading(theirs + half_way, answered, _wall())
        return read.theirs + np.timedelta64(round((_ran_s() - read.ran_s) * 1e9), "ns")

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        """The market sessions from the first to the last day; half days end early, and holidays have none."""
        days = str(first.astype("datetime64[D]")), str(last.astype("datetime64[D]"))
        if days not in self._sessions:
            answer = self._rest.get("/calendar", {"start": days[0], "end": days[1]})
            with reading("calendar"):
                self._sessions[days] = [_session(each) for each in read_list(answer)]
        return self._sessions[days]


class TimeLimit:
    """A time limit in seconds from now. end: by `time.monotonic`."""

    def __init__(self, timeout_s: float) -> None:
        self.end = time.monotonic() + timeout_s
        self._wait_s = _FIRST_WAIT_S

    def wait(self) -> bool:
        """Wait before the next attempt, longer each time; returns False at once if there is no time left."""
        if time.monotonic() + self._wait_s > self.end:
            return False
        time.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        return True


@contextmanager
def reading(what: str, answer: object = None) -> Iterator[None]:
    """Raise UnreadableAnswer, with the reason and the ID of the answer, if it cannot be parsed.

    >>> with reading("order", {"id": "7"}):
    ...     read_number({}, "qty")
    Traceback (most recent call last):
    ml_pipeline.live.brokers.broker.UnreadableAnswer: Alpaca's order 7 cannot be read: its qty is missing.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        names = [answer.get(name) for name in ("client_order_id", "id")] if isinstance(answer, dict) else []
        named = "".join(f" {name}" for name in names if name)[:200]
        reason = f"its {error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        reason = reason if reason.startswith("its ") else f"it has an unknown form ({reason})"
        raise UnreadableAnswer(f"Alpaca's {what}{named} cannot be read: {reason}.") from None


def read_list(answer: object) -> list[dict[str, Any]]:
    """A list of entries in an answer. Raises ValueError."""
    if not isinstance(answer, list) or not all(isinstance(each, dict) for each in answer):
        raise ValueError("its entries are missing")
    return answer


def read_text(answer: Mapping[str, Any], name: str) -> str:
    """A text in an answer, such as an ID. Raises ValueError with the reason."""
    value = answer[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f'its {name} is "{value}", but must be text')
    return value


def read_number(answer: Mapping[str, Any], name: str) -> Decimal:
    """A number in an answer, which Alpaca writes as text. Raises ValueError with the reason."""
    value = answer.get(name)
    if value is None or value == "":
        raise ValueError(f"its {name} is missing")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or isinstance(value, bool):
        raise ValueError(f'its {name} is "{value}", but must be a number')
    return number


def time_of(text: str) -> np.datetime64:
    """Parse a time from Alpaca, to the nanosecond if it is in UTC.

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
    """Convert a time of the exchange's day, such as 09:30 or 0930, to UTC."""
    digits = clock.replace(":", "")
    local = datetime.fromisoformat(f"{date}T{digits[:2]}:{digits[2:4]}").replace(tzinfo=_EXCHANGE)
    return np.datetime64(local.astimezone(ZoneInfo("UTC")).replace(tzinfo=None), "ns")


def _wall() -> np.datetime64:
    return np.datetime64(time.time_ns(), "ns")


def _ran_s() -> float:
    """The running time of this machine, which cannot be set."""
    return time.monotonic()


class _ClockReading(NamedTuple):
    """An answer of the clock. ran_s, wall: the running time and the clock of this machine when it was given."""

    theirs: np.datetime64
    ran_s: float
    wall: np.datetime64

    def is_old(self) -> bool:
        ran_s, wall_s = _ran_s() - self.ran_s, float((_wall() - self.wall) / np.timedelta64(1, "s"))
        return ran_s > _KEPT_S or abs(wall_s - ran_s) > _STEP_S


class _NoAnswer(Exception):
    """There was no answer, or it is unreadable."""


def _refusal(status: int, text: str, account: str) -> Refused | KeysRefused:
    code, message = 0, text.strip()[:300]
    try:
        answer = json.loads(text)
        code, message = int(answer.get("code") or 0), str(answer.get("message") or message)
    except (ValueError, AttributeError, TypeError):
        pass
    # A refused order has a specific code; refused keys have none, or that of 401.
    if status in _NO_ENTRY or (status == 403 and code // 100_000 != 403):
        return KeysRefused(
            f"Alpaca's {account} account does not accept these keys (status {status}); check that they belong to the "
            f"{account} account and have not been replaced by newer ones."
        )
    return Refused(status, code, message)
