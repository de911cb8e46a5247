"""A dead man's switch: an address that is called every minute while a session works, so that silence raises an alarm.

By the convention of healthchecks.io, a GET of the address means that all is well, and a POST to ADDRESS/fail that the
session has ended by itself. The address may be a secret: no message contains more of it than the host.
"""

import http.client
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from ml_pipeline.config.wording import in_one_line
from ml_pipeline.live.alerting.alerts import drained

_END_S = 5.0
"""Time limit of the last call."""


class DeadMansSwitch:
    """Calls the address every `every_s` from a thread, and `again_s` after a call that failed.

    It neither blocks nor raises, and reports an outage of the server once. Use it as a context manager around the
    session: an error that leaves the block is a failure.
    """

    def __init__(
        self,
        url: str | None,
        *,
        works: Callable[[], bool],
        every_s: float = 60.0,
        again_s: float = 10.0,
        timeout_s: float = 10.0,
    ) -> None:
        """url: None: do nothing. works: whether the session's loop is alive; without it no call is made."""
        self._url, self._works = url, works
        self._every_s, self._again_s, self._timeout_s = every_s, again_s, timeout_s
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._outages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_away = False
        self._failure: str | None = None
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "DeadMansSwitch":
        if self._url is not None:
            self._thread = threading.Thread(target=self._work, args=(self._url,), name="dead man's switch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(str(error) or type(error).__name__)
        self.close()

    def fail(self, why: str) -> None:
        """The session ends by itself: `close` reports a failure. The first reason counts."""
        self._failure = self._failure or why

    def take_outages(self) -> list[str]:
        """A sentence for the log about each outage of the server since the last call."""
        return drained(self._outages)

    def close(self, *, within_s: float = _END_S) -> None:
        """Stop calling, and report a failure if there was one, within the time limit. May be called twice."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(within_s)
            self._thread = None

    def _work(self, url: str) -> None:
        host = urlsplit(url).hostname
        while True:
            wait_s = self._again_s
            if self._works():
                why = self._call(url)
                self._note(why, host)
                wait_s = self._again_s if why else self._every_s
            if self._ends.wait(wait_s):
                break
        if self._failure is not None:
            parts = urlsplit(url)
            failed = parts._replace(path=f"{parts.path.rstrip('/')}/fail").geturl()
            self._call(failed, in_one_line(self._failure, 1_000).encode())

    def _note(self, why: str, host: str | None) -> None:
        if why and not self._is_away:
            self._outages.put(
                f"{host} does not take the heartbeat ({why}), so its alarm may be false. The session keeps trying."
            )
        self._is_away = bool(why)

    def _call(self, url: str, body: bytes | None = None) -> str:
        """GET the address, or POST the body. Returns why that failed, without the address; "" if it did not."""
        try:
            request = urllib.request.Request(url, body, {"User-Agent": "ml-pipeline"})
            with self._opener.open(request, timeout=self._timeout_s):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"it answered {error.code}"
        except urllib.error.URLError as error:
            return _kind(error.reason)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _kind(error)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they may lead to any host."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def _kind(error: object) -> str:
    """An error without its text, which may quote the address."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__
