"""Delivers messages to a webhook from a thread of its own, so that it can neither slow nor end trading."""

import contextlib
import http.client
import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ml_pipeline.config.wording import counted

_AGAIN = frozenset({408, 425, 429, *range(500, 600)})
"""HTTP status codes of failures that may pass."""
_LONGEST_WAIT_S = 60.0
_LOOK_S = 0.1
"""So often an idle thread looks whether it is to end."""


class Webhook:
    """Posts JSON objects in their order; each is tried several times, at growing intervals.

    Nothing here raises or waits but `close`. What could not be delivered is told by `take_failures`, in sentences that
    name the host alone: the rest of the address may be a secret.
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
        """timeout_s: for each step of a try. first_wait_s: after the first failure, doubled after each other one.
        most_waiting: so many messages are kept while the receiver is away; others are not delivered.
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
        """Have a message delivered soon."""
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
            self._failures.put(f"An alert is not delivered: {self._waiting.maxsize:,} others wait for {self._host}.")

    def take_failures(self) -> list[str]:
        """What could not be delivered since the last call, a sentence for each."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._failures.get_nowait())
        return found

    def close(self, *, within_s: float = 5.0) -> None:
        """Have what waits delivered, each by one more try; what takes longer than the limit is left and told."""
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
            except Exception as error:  # a receiver may answer with anything, and this thread must go on
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
        """(why it failed, or nothing; whether that may pass; how long the receiver asks to wait, in s)."""
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
    """A redirect would turn the message into a GET, and may lead to anybody."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def _kind(error: object) -> str:
    """An error without its text, which may quote the address."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__


def _seconds(text: str | None) -> float:
    """What Retry-After asks for in seconds; 0 where it names a date or nothing."""
    return float(text) if text is not None and text.isdecimal() and len(text) < 9 else 0.0
