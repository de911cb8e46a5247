"""The line to a broker that may be away: what fails is tried again, ever less often, and that is told once."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ml_pipeline.live.brokers.broker import BrokerUnavailable
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.runs.stop import StopRequest

Answer = TypeVar("Answer")
_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.5, 30.0


class BrokerLine:
    """away: whether the last attempt failed. back_off_s: how long to wait until the next."""

    def __init__(self, record: SessionRecord) -> None:
        self._record = record
        self.away = False
        self.back_off_s = _FIRST_BACK_OFF_S

    def attempt(self, work: Callable[[], object], bar: np.datetime64 | None) -> bool:
        """Do something with the broker; False where it is away. bar: the time of the last one, for the log."""
        try:
            work()
        except BrokerUnavailable as error:
            if not self.away:
                self.away = True
                self._record.log_now("broker_away", bar, sentence=_away(error))
            self.back_off_s = _longer(self.back_off_s)
            return False
        self.back_off_s = _FIRST_BACK_OFF_S
        if self.away:
            self.away = False
            self._record.log_now("broker_back", bar, sentence="The broker can be reached again.")
        return True


class StopWhileWaiting(Exception):
    """A stop was requested while the broker was away."""


def patiently(
    ask: Callable[[], Answer],
    stop: StopRequest,
    say: Callable[[str], None],
    *,
    beat: Callable[[], None] = lambda: None,
) -> Answer:
    """The answer of a broker that may be away: it is asked again, ever less often; that is told once.

    beat: called again and again meanwhile. Raises StopWhileWaiting where a stop is requested meanwhile.
    """
    wait_s, told = _FIRST_BACK_OFF_S, False
    while True:
        try:
            return ask()
        except BrokerUnavailable as error:
            if not told:
                say(_away(error))
            told = True
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0:
            if stop.requested:
                raise StopWhileWaiting
            beat()
            time.sleep(min(left, 0.2))
        wait_s = _longer(wait_s)


def _longer(back_off_s: float) -> float:
    return min(2 * back_off_s, _LONGEST_BACK_OFF_S)


def _away(error: BrokerUnavailable) -> str:
    return f"The broker cannot be reached: {error}".rstrip(": .") + "; it is tried again."
