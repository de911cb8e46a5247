"""Send the events of a session as alerts, by Apprise: mail, chats, push services and webhooks.

A separate thread per address delivers the messages, so that delivery can neither slow nor end trading.
"""

import logging
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.live.alerting.alert_config import AlertConfig
from ml_pipeline.live.record.session_log import Event

_LONGEST_WAIT_S = 60.0
_LOOK_S = 0.1
"""Interval at which an idle thread checks whether to end."""
_END_S = 10.0
"""Time limit of the last deliveries; Apprise pauses up to 5.5 s between two messages to some services."""
# Receivers of chats take 2,000 characters and more.
_LONGEST_TEXT = 1_500


class Alert(NamedTuple):
    """How an event is sent. level: Apprise's type of the notification. always: never left out for being frequent."""

    level: Literal["info", "success", "warning", "failure"]
    always: bool = False


ALERTS: dict[Event, Alert] = {
    "start": Alert("info", always=True),
    "stop": Alert("failure", always=True),
    "difference": Alert("failure"),
    "adjustment": Alert("info"),
    "corporate_action": Alert("info"),
    "refusal": Alert("warning"),
    "gap": Alert("warning"),
    "missed": Alert("warning"),
    "broker_away": Alert("failure"),
    "broker_back": Alert("success"),
    "model": Alert("info"),
    "retrain": Alert("info"),
    "alert": Alert("warning"),
}
"""The events of live.jsonl that are sent."""
NOT_SENT: frozenset[Event] = frozenset(
    {"decision", "order", "update", "fill", "charge", "protection", "correction", "late"}
)
"""The events that are not: they belong to normal trading. Each event is here or in `ALERTS`."""


def drained(sentences: "queue.SimpleQueue[str]") -> list[str]:
    """What other threads have put into the queue."""
    return [sentences.get_nowait() for _ in range(sentences.qsize())]  # no other thread takes any


class Message(NamedTuple):
    title: str
    body: str
    level: str


class Sender:
    """Delivers messages to one address in order, each with several tries at growing intervals.

    Only `close` waits, and nothing raises. `take_failures` returns a sentence for each failed delivery, which names
    only the service: the address may be a secret.
    """

    def __init__(
        self,
        send: Callable[[Message], object],
        service: str,
        *,
        tries: int = 5,
        first_wait_s: float = 1.0,
        most_waiting: int = 100,
    ) -> None:
        """send: returns something true if the message was delivered. first_wait_s: pause after the first failure,
        doubled after each other one. most_waiting: messages kept while the service fails; further ones are dropped.
        """
        self._send, self._service = send, service
        self._tries, self._first_wait_s = tries, first_wait_s
        self._waiting: queue.Queue[Message] = queue.Queue(most_waiting)
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def post(self, message: Message) -> None:
        """Queue a message for delivery."""
        if self._ends.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"{_THREADS} {self._service}", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._failures.put(f"An alert was dropped: {self._waiting.maxsize:,} others wait for {self._service}.")

    def take_failures(self) -> list[str]:
        """A sentence for each failed delivery since the last call."""
        return drained(self._failures)

    def end(self) -> None:
        """Deliver the waiting messages with one more try each, and take no others."""
        self._ends.set()

    def close(self, *, within_s: float = _END_S) -> None:
        """End, and wait for the last deliveries; report those that the time limit leaves. May be called twice."""
        self.end()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(within_s)
        if thread.is_alive():
            left = counted(self._waiting.qsize() + 1, "alert")
            self._failures.put(f"{self._service} did not take the last {left} within {within_s:g} s of the end.")

    def _work(self) -> None:
        while True:
            try:
                message = self._waiting.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._ends.is_set():
                    return
                continue
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        wait_s = self._first_wait_s
        for i in range(self._tries):
            if self._try(message):
                return
            if i + 1 == self._tries or self._ends.is_set():
                break
            self._ends.wait(min(wait_s, _LONGEST_WAIT_S))
            wait_s *= 2
        tries = "1 try" if i == 0 else f"{i + 1} tries"
        self._failures.put(
            f"{self._service} did not take an alert in {tries}; `apprise -v -b test ADDRESS` shows the reason."
        )

    def _try(self, message: Message) -> bool:
        try:
            return bool(self._send(message))
        except Exception:  # a service of Apprise may raise anything; this thread must continue
            return False


class Alerts:
    """Sends events; each guard and each kind of event at most once per interval, with a count.

    Without a sender it does nothing. It never raises, and waits only in `close`, for some seconds.
    As a context manager it also sends an error that ends the session before anything else tells its end.
    """

    def __init__(
        self,
        session: str,
        senders: Sequence[Sender] = (),
        *,
        every_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """session: its name, the title of each message. every_s: the interval. clock: in seconds."""
        self._session = session
        self._senders = tuple(senders)
        self._every_s = every_s
        self._clock = clock
        self._sent: dict[str, _Sent] = {}
        self._told_end = False

    def __enter__(self) -> "Alerts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not self._told_end:  # it ended before it had a log
            self.tell("stop", None, {"why": str(error) or type(error).__name__, "flat": None})
        self.close()

    def tell(self, event: Event, bar: np.datetime64 | None, values: Mapping[str, Any]) -> None:
        """Send an event of live.jsonl if it is in `ALERTS`."""
        alert = ALERTS.get(event)
        if alert is None or not self._senders:
            return
        left_out = 0
        if not alert.always:
            key = f"{event} {values.get('guard') or values.get('kind') or ''}"
            sent, now = self._sent.get(key), self._clock()
            if sent is not None and now - sent.at_s < self._every_s:
                self._sent[key] = sent._replace(left_out=sent.left_out + 1)
                return
            left_out = 0 if sent is None else sent.left_out
            self._sent[key] = _Sent(now, 0)
        text = in_words(event, values)
        if left_out:
            text += f" (and {counted(left_out, 'time')} more since the last alert)"
        if event == "stop":
            self._told_end = True
            text += self._all_left_out()
        message = Message(self._session, in_one_line(text, _LONGEST_TEXT), alert.level)
        for sender in self._senders:
            sender.post(message)

    def take_failures(self) -> list[str]:
        """A sentence for the log about each failed delivery since the last call."""
        return [sentence for sender in self._senders for sentence in sender.take_failures()]

    def close(self, *, within_s: float = _END_S) -> None:
        """Deliver waiting messages, within the time limit for all together; may be called twice."""
        until = time.monotonic() + within_s
        for sender in self._senders:
            sender.end()
        for sender in self._senders:
            sender.close(within_s=round(max(until - time.monotonic(), 0.0), 1))

    def _all_left_out(self) -> str:
        left = {key.strip(): sent.left_out for key, sent in self._sent.items() if sent.left_out}
        named = ", ".join(f"{key} {counted(n, 'time')}" for key, n in left.items())
        return f" Not sent before: {named}." if left else ""


def open_alerts(config: AlertConfig, session: str) -> Alerts:
    """The alerts of a session with these settings.

    Raises UserError if Apprise is not installed, or does not know an address.
    """
    urls = config.urls()
    senders = [] if urls is None else apprise_senders(urls, where=config.urls_are_in)
    return Alerts(session, senders, every_s=60.0 * config.alert_every_minutes)


_THREADS = "alerts to"


def apprise_senders(urls: str, *, where: str) -> list[Sender]:
    """A sender for each of these Apprise addresses, separated by spaces or commas.

    where: they are stored, for messages. Raises UserError as `open_alerts` does.
    """
    try:
        import apprise
    except ImportError as error:
        raise UserError(
            f"Alerts need Apprise, which is not installed: {install_extra('alerts')}; or remove the address from "
            f"{where} to trade without alerts."
        ) from error
    # Its messages contain addresses, and those of urllib3 contain paths; a handler may write both to a file.
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    of_urllib3 = logging.getLogger("urllib3.connectionpool")
    if _not_of_alerts not in of_urllib3.filters:
        of_urllib3.addFilter(_not_of_alerts)
    # Each address has a thread here; those of Apprise would delay the end of the process.
    asset = apprise.AppriseAsset(app_id="ml-pipeline", async_mode=False, service_timeout=0)
    known = apprise.Apprise(asset=asset)
    with warnings.catch_warnings():  # of modules that its services import; users cannot change that
        warnings.simplefilter("ignore", DeprecationWarning)
        knows_all = known.add(urls)
    if not knows_all:
        raise UserError(
            f"Apprise does not know an address in {where}; https://github.com/caronc/apprise/wiki lists the form of "
            "each service. A webhook of your own is jsons://HOST/PATH, or json://HOST/PATH without encryption."
        )
    return [_sender_to(service, apprise.Apprise(service, asset=asset)) for service in known]


def _sender_to(service: Any, alone: Any) -> Sender:
    def send(message: Message) -> object:
        return alone.notify(title=message.title, body=message.body, notify_type=message.level, body_format="text")

    return Sender(send, str(service.service_name))


def _not_of_alerts(record: logging.LogRecord) -> bool:
    return not str(record.threadName).startswith(_THREADS)


class _Sent(NamedTuple):
    at_s: float
    left_out: int


def in_words(event: str, values: Mapping[str, Any]) -> str:
    """An event as a sentence.

    >>> in_words("model", {"from": "v1", "to": "v2", "why": "it was promoted"})
    'The session trades model v2 in place of v1: it was promoted.'
    >>> in_words("refusal", {"guard": "guard_gross", "sentence": "The order of A is refused."})
    'The order of A is refused.'
    """
    if event != "stop" and (sentence := values.get("sentence")):
        return str(sentence)
    get = values.get
    if event == "start":
        symbols = get("symbols") or ()
        what = ", ".join(map(str, symbols[:5])) + (" ..." if len(symbols) > 5 else "")
        version = f" {get('version')}" if get("version") else ""
        return f"The session trades {what} with {get('model')}{version}, broker {get('broker')}."
    if event == "stop":
        flat = get("flat")
        positions = "" if flat is None else f" The account {'is flat' if flat else 'holds its positions'}."
        return f"The session has stopped: {str(get('why')).rstrip('.')}.{positions}"
    if event == "model":
        return f"The session trades model {get('to')} in place of {get('from')}: {str(get('why')).rstrip('.')}."
    rest = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"{event.replace('_', ' ')}{': ' if rest else ''}{rest}."
