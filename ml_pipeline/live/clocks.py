"""Compare the clock that closes the bars with the broker's: either may be wrong, or be set while the session runs."""

from collections.abc import Callable

import numpy as np

from ml_pipeline.config.wording import lasting
from ml_pipeline.live.brokers.broker import Broker
from ml_pipeline.live.feeds.feed import Feed

_SECOND = np.timedelta64(1, "s")


class Clocks:
    """The broker's time, and how far the clock of the feed is from it.

    A broker that fills orders with bars, such as the simulated one, has no clock: its time is the close of the last
    bar. The time is then the feed's, and only rows of a followed file that begin in the future show that it is wrong.
    ahead_s: how far the feed's clock is ahead of the right time, in seconds; negative: behind; 0 in a replay.
    """

    def __init__(
        self,
        feed: Feed,
        broker: Broker,
        *,
        most_s: float,
        real_time: bool,
        tell: Callable[[str, str], None] = lambda kind, sentence: None,
    ) -> None:
        """most_s: the largest difference in seconds that is no reason to hold. tell: called with a kind of
        alert and a sentence when the clocks differ, and again when they agree."""
        self._feed, self._broker = feed, broker
        self._most_s, self._real_time, self._tell = most_s, real_time, tell
        self._feed_has_clock = bool(getattr(feed, "has_clock", True))
        self._certain = bool(getattr(broker, "has_clock", False))  # otherwise the first bar shows it
        self._broker_has_clock = self._certain
        self._differ = False
        self._from_broker: np.timedelta64 = np.timedelta64(0, "ns")  # of the feed's time
        self.ahead_s = 0.0

    def look(self, shown: np.datetime64 | None = None) -> None:
        """Compare the clocks. shown: the close of the last bar that the broker was shown; None: none since the last
        call. Raises BrokerUnavailable."""
        if not self._real_time:
            return
        theirs = self._broker.now()
        if shown is not None:
            self._broker_has_clock = self._certain or bool(theirs != shown)
        self._from_broker = self._feed.now() - theirs if self._broker_has_clock else np.timedelta64(0, "ns")
        if self._broker_has_clock and self._feed_has_clock:
            self.ahead_s = float(self._from_broker / _SECOND)
        else:
            self.ahead_s = -float(getattr(self._feed, "clock_behind_s", 0.0))
        if (differ := not abs(self.ahead_s) <= self._most_s) != self._differ:
            self._differ = differ
            if differ:
                self._tell("guard_clock_s", self._sentence())
            else:
                self._tell("clocks_agree", f"The clocks agree again within {self._most_s:g} s.")

    def now(self) -> np.datetime64:
        """The broker's time; the feed's if the broker has no clock."""
        return self._feed.now() - self._from_broker

    def _sentence(self) -> str:
        how = f"{lasting(abs(self.ahead_s))} {'ahead of' if self.ahead_s > 0 else 'behind'}"
        whose = "the broker's" if self._broker_has_clock else "the times in the followed file"
        return (
            f"This machine's clock is {how} {whose}: nothing is ordered until they agree within {self._most_s:g} s "
            "(guard_clock_s)."
        )
