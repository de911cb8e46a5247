"""A session in the account of the test's server, whose clocks and bars the test moves on."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.live.alpaca import client
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.feeds.assembled import AssembledFeed, Market
from ml_pipeline.live.feeds.bars import SymbolBar
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.testing.feeds import BEGINS, MINUTE, minutes_market
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.timeframes import Calendar, Timing, make_clock
from tests.live.loop.sessions import ChangedFeed, deploy

SYMBOL = "AAPL"
_STEP_S = 20.0
WARM = 10


class Machine:
    """wall: what this machine's clock shows. right: the right time. ran_s: how long the machine has run."""

    def __init__(self, monkeypatch: Any, server: Any) -> None:
        self.right = self.wall = BEGINS + WARM * MINUTE
        self.ran_s = 0.0
        monkeypatch.setattr(client, "_wall", lambda: self.wall)
        monkeypatch.setattr(client, "_ran_s", lambda: self.ran_s)
        server.trading.now = lambda: (
            datetime.fromtimestamp(0, UTC)
            + timedelta(microseconds=int(self.right.astype("datetime64[us]").astype(np.int64)))
        )

    def run(self, seconds: float) -> None:
        span = np.timedelta64(round(seconds * 1e9), "ns")
        self.right, self.wall, self.ran_s = self.right + span, self.wall + span, self.ran_s + seconds

    def set_clock(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self.wall = self.wall + np.timedelta64(round(seconds * 1e9), "ns")


class Minutes:
    """The bars of one symbol, each sent when its minute is over by the right time."""

    name = "the source"

    def __init__(self, machine: Machine, n_bars: int) -> None:
        market = minutes_market(n_bars, 1)
        names = ("open", "high", "low", "close", "volume")
        self._bars = [
            SymbolBar(SYMBOL, bars.time, *(float(getattr(bars, name)[0]) for name in names))
            for bars in bar_sets_of(market)
        ]
        self._machine = machine
        self._sent = WARM

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def receive(self, timeout_s: float) -> list[SymbolBar]:
        first = self._sent
        while self._sent < len(self._bars) and self._bars[self._sent].time + MINUTE <= self._machine.right:
            self._sent += 1
        return self._bars[first : self._sent]

    def history(self, first: np.datetime64, last: np.datetime64) -> list[SymbolBar]:
        return [bar for bar in self._bars[: self._sent] if first <= bar.time <= last]

    def corporate_actions(self, since: np.datetime64, now: np.datetime64) -> list[Any]:
        return []


def timed_session(
    root: Path,
    machine: Machine,
    account: Any,
    *,
    n_bars: int,
    at: Callable[[float], None],
    source: Any = None,
    step_s: float = _STEP_S,
    **settings: Any,
) -> PaperTrading:
    """A session that stops after `n_bars` minutes. at: called with the minutes since its begin, every `step_s` seconds.

    source: of bars, in place of a few minutes.
    """
    model = root / "model"
    if not model.exists():
        deploy(model, [SYMBOL], size_at="decision", features=("log_return_1", "rsi_3"))
    base = Timing(60 * 10**9, "open", make_clock("09:30-16:00", "America/New_York"))
    market = Market((SYMBOL,), base, base.length, Calendar("weekdays", 252.0 * 390, ""))
    source = source or Minutes(machine, WARM + n_bars + 5)
    feed = AssembledFeed(source, market, FeedConfig(warmup_bars=WARM), clock=lambda: machine.wall)
    begins = machine.right

    def next_item(feed: Any, timeout_s: float | None) -> Any:
        if (item := feed.next(0.0)) is not None:
            return item
        machine.run(step_s)
        minutes = float((machine.right - begins) / MINUTE)
        at(minutes)
        if minutes >= n_bars:
            trading.stop.request("Enough.")
        return feed.next(0.0)

    values = {"model": model, "root": root / "live", "name": "NAME", "broker": "alpaca", **settings}
    changed: Any = ChangedFeed(feed, next_item)
    trading = PaperTrading(paper_trade_config(values), feed=changed, broker=account)
    return trading
