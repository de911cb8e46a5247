"""Tells a person by a webhook what happens in a session: in words, with the whole event beside them."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.live.alerting.alert_config import AlertConfig
from ml_pipeline.live.alerting.webhook import Webhook
from ml_pipeline.live.record.session_log import plain

# Receivers of chats take 2,000 characters and more.
_LONGEST_TEXT = 1_500
_ALWAYS = frozenset({"start", "stop"})
TOLD = frozenset(
    {*_ALWAYS, "refusal", "gap", "missed", "difference", "broker_away", "broker_back", "model", "retrain", "alert"}
)
"""The events of live.jsonl that are told."""


class Receiver(Protocol):
    """What delivers messages: a `Webhook`."""

    def post(self, message: Mapping[str, Any]) -> None: ...

    def take_failures(self) -> list[str]: ...

    def close(self) -> None: ...


class Alerts:
    """Tells events; the same guard, and the same kind of event, at most once in a while, with how often it happened.

    Without a receiver it does nothing. It never raises and never waits, but for seconds in `close`.
    """

    def __init__(
        self,
        session: str,
        receiver: Receiver | None,
        *,
        every_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """session: its name, with which each message begins. every_s: the while. clock: in seconds."""
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
        """Tell an event of live.jsonl, with the same values, if it is one that is told."""
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
            text += f" (and {counted(untold, 'time')} more since this was last told)"
        if event == "stop":
            text += self._all_untold()
        text = in_one_line(text, _LONGEST_TEXT)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        whole = {"event": event, "at": at, "bar": None if bar is None else str(bar), "session": self._session}
        # Slack and what is like it read `text`, Discord reads `content`; programs of one's own read the event.
        self._receiver.post({"text": text, "content": text, "event": {**plain(values), **whole}})

    def take_failures(self) -> list[str]:
        """What could not be delivered since the last call, a sentence for each: for the log."""
        return [] if self._receiver is None else self._receiver.take_failures()

    def close(self) -> None:
        """Have what waits delivered, for a few seconds at most; may be called twice."""
        if self._receiver is not None:
            self._receiver.close()

    def _all_untold(self) -> str:
        left = {key.strip(): told.untold for key, told in self._told.items() if told.untold}
        named = ", ".join(f"{key} {counted(n, 'time')}" for key, n in left.items())
        return f" Not told before: {named}." if left else ""


def open_alerts(config: AlertConfig, session: str) -> Alerts:
    """The alerts of a session by these settings. Raises UserError where the address cannot be used."""
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
