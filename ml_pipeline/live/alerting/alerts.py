"""Post the events of a session to a webhook, each as a sentence and as data.

A separate thread delivers the messages, so that delivery can neither slow nor end trading.
"""

import contextlib
import http.client
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np

from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.live.alerting.alert_config import AlertConfig
from ml_pipeline.live.record.session_log import plain

_AGAIN = frozenset({408, 425, 429, *range(500, 600)})
"""HTTP status codes of temporary failures."""
_LONGEST_WAIT_S = 60.0
_LOOK_S = 0.1
"""Interval at which an idle thread checks whether to end."""


class Webhook:
    """Posts JSON objects in order, each with several tries at growing intervals.

    Only `close` waits, and nothing raises. `take_failures` returns a message for each failed delivery, which names only
    the host: the rest of the address may be a secret.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        tries: int = 5,
        first_wait_s: float = 1.0,
        most_waiting: int = 100,
    ) -> None:
        """timeout_s: for each step of a try. first_wait_s: pause after the first failure, doubled after each other one.
        most_waiting: messages kept while the receiver is unreachable; further ones are dropped.
        """
        self._url = url
        self._host = urlsplit(url).hostname
        self._timeout_s, self._tries, self._first_wait_s = timeout_s, tries, first_wait_s
        self._waiting: queue.Queue[bytes] = queue.Queue(most_waiting)
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._opener = urllib.request.build_opener(_NoRedirects)

    def post(self, message: Mapping[str, Any]) -> None:
        """Queue a message for delivery."""
        if self._closed:
            return
        try:
            data = json.dumps(message, default=str, ensure_ascii=False).encode(errors="replace")
        except (ValueError, TypeError, RecursionError) as error:
            self._failures.put(f"An alert could not be written as JSON ({type(error).__name__}).")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(data)
        except queue.Full:
            self._failures.put(f"An alert was dropped: {self._waiting.maxsize:,} others wait for {self._host}.")

    def take_failures(self) -> list[str]:
        """A message for each failed delivery since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._failures.get_nowait())
        return found

    def close(self, *, within_s: float = 5.0) -> None:
        """Deliver the waiting messages with one more try each; report those that the time limit leaves."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            return
        self._ends.set()
        self._thread.join(within_s)
        if self._thread.is_alive():
            left = counted(self._waiting.qsize() + 1, "alert")
            self._failures.put(f"{self._host} did not take the last {left} within {within_s:g} s of the end.")

    def _work(self) -> None:
        while True:
            try:
                data = self._waiting.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._ends.is_set():
                    return
                continue
            try:
                self._deliver(data)
            except Exception as error:  # a receiver may answer with anything; this thread must continue
                self._failures.put(f"An alert was not delivered to {self._host}: {type(error).__name__}.")

    def _deliver(self, data: bytes) -> None:
        wait_s, why = self._first_wait_s, ""
        for i in range(self._tries):
            why, may_pass, asked_wait_s = self._try(data)
            if not why:
                return
            if not may_pass or i + 1 == self._tries or self._ends.is_set():
                break
            self._ends.wait(min(max(wait_s, asked_wait_s), _LONGEST_WAIT_S))
            wait_s *= 2
        tries = "1 try" if i == 0 else f"{i + 1} tries"
        self._failures.put(f"An alert was not delivered to {self._host} in {tries}: {why}.")

    def _try(self, data: bytes) -> tuple[str, bool, float]:
        """(why it failed, or ""; whether the failure may be temporary; wait that the receiver requests, in s)."""
        headers = {"Content-Type": "application/json", "User-Agent": "ml-pipeline"}
        request = urllib.request.Request(self._url, data, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return "", False, 0.0
        except urllib.error.HTTPError as error:
            with error:
                return f"it answered {error.code}", error.code in _AGAIN, _seconds(error.headers.get("Retry-After"))
        except urllib.error.URLError as error:
            return f"it cannot be reached ({_kind(error.reason)})", True, 0.0
        except (OSError, http.client.HTTPException) as error:
            return f"the connection failed ({_kind(error)})", True, 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they turn the message into a GET, and may lead to any host."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def _kind(error: object) -> str:
    """An error without its text, which may quote the address."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__


def _seconds(text: str | None) -> float:
    """The seconds in a Retry-After header; 0 if it is a date or missing."""
    return float(text) if text is not None and text.isdecimal() and len(text) < 9 else 0.0


# Receivers of chats take 2,000 characters and more.
_LONGEST_TEXT = 1_500
_ALWAYS = frozenset({"start", "stop"})
TOLD = frozenset(
    {*_ALWAYS, "refusal", "gap", "missed", "difference", "broker_away", "broker_back", "model", "retrain", "alert"}
)
"""The events of live.jsonl that are posted."""


class Receiver(Protocol):
    """Delivers messages, such as a `Webhook`."""

    def post(self, message: Mapping[str, Any]) -> None: ...

    def take_failures(self) -> list[str]: ...

    def close(self) -> None: ...


class Alerts:
    """Posts events; the same guard or kind of event at most once per interval, with a count.

    Without a receiver it does nothing. It never raises, and waits only in `close`, for some seconds.
    """

    def __init__(
        self,
        session: str,
        receiver: Receiver | None,
        *,
        every_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """session: its name, which begins each message. every_s: the interval. clock: in seconds."""
        self._session = session
        self._receiver = receiver
        self._every_s = every_s
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def __enter__(self) -> "Alerts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tell(self, event: str, bar: np.datetime64 | None, values: Mapping[str, Any]) -> None:
        """Post an event of live.jsonl, with the same values, if it is in `TOLD`."""
        if self._receiver is None or event not in TOLD:
            return
        untold = 0
        if event not in _ALWAYS:
            key = f"{event} {values.get('guard', '')}"
            told, now = self._told.get(key), self._clock()
            if told is not None and now - told.at_s < self._every_s:
                self._told[key] = told._replace(untold=told.untold + 1)
                return
            untold = 0 if told is None else told.untold
            self._told[key] = _Told(now, 0)
        text = f"{self._session}: {in_words(event, values)}"
        if untold:
            text += f" (and {counted(untold, 'time')} more since the last alert)"
        if event == "stop":
            text += self._all_untold()
        text = in_one_line(text, _LONGEST_TEXT)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        whole = {"event": event, "at": at, "bar": None if bar is None else str(bar), "session": self._session}
        # Slack and Mattermost read `text`, Discord reads `content`; other programs can read `event`.
        self._receiver.post({"text": text, "content": text, "event": {**plain(values), **whole}})

    def take_failures(self) -> list[str]:
        """A message for the log about each failed delivery since the last call."""
        return [] if self._receiver is None else self._receiver.take_failures()

    def close(self) -> None:
        """Deliver waiting messages for a few seconds at most; may be called twice."""
        if self._receiver is not None:
            self._receiver.close()

    def _all_untold(self) -> str:
        left = {key.strip(): told.untold for key, told in self._told.items() if told.untold}
        named = ", ".join(f"{key} {counted(n, 'time')}" for key, n in left.items())
        return f" Not sent before: {named}." if left else ""


def open_alerts(config: AlertConfig, session: str) -> Alerts:
    """The alerts of a session with these settings. Raises UserError if the address is invalid."""
    url = config.url()
    return Alerts(session, None if url is None else Webhook(url), every_s=60.0 * config.alert_every_minutes)


class _Told(NamedTuple):
    at_s: float
    untold: int


def in_words(event: str, values: Mapping[str, Any]) -> str:
    """An event as a sentence.

    >>> in_words("model", {"from": "v1", "to": "v2", "why": "it was promoted"})
    'trades model v2 in place of v1: it was promoted.'
    >>> in_words("refusal", {"guard": "guard_gross", "sentence": "The order of A is refused."})
    'The order of A is refused.'
    """
    if sentence := values.get("sentence"):
        return str(sentence)
    get = values.get
    if event == "start":
        symbols = get("symbols") or ()
        what = ", ".join(map(str, symbols[:5])) + (" ..." if len(symbols) > 5 else "")
        version = f" {get('version')}" if get("version") else ""
        return f"begins to trade {what} with {get('model')}{version}, broker {get('broker')}."
    if event == "stop":
        flat = get("flat")
        positions = "" if flat is None else f" The account {'is flat' if flat else 'holds its positions'}."
        return f"has stopped: {str(get('why')).rstrip('.')}.{positions}"
    if event == "model":
        return f"trades model {get('to')} in place of {get('from')}: {str(get('why')).rstrip('.')}."
    rest = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"{event.replace('_', ' ')}{': ' if rest else ''}{rest}."
