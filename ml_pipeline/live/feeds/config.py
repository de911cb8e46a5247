"""The settings of where bars come from, and of what is done when they do not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ml_pipeline.config.checks import check_choice, check_count, check_non_negative, check_positive
from ml_pipeline.config.errors import UserError

OnGap = Literal["wait", "flatten"]
FollowClock = Literal["utc", "bars"]


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """Where bars come from. Neither `replay` nor `follow`: from the broker.

    Raises UserError where a value is out of range, or where two settings exclude each other.
    """

    replay: Path | None = None
    """Recorded bars to trade on as if they came now: a CSV or Parquet file, or a folder with one file per symbol."""

    replay_from: str | None = None
    """Time of the first bar to trade on in a replay, such as 2024-03-01 or 2024-03-01T14:30 (UTC); those before it warm
    features up. None: the first bar with complete features."""

    speed: float | None = None
    """How many times as fast as real time a replay runs, by the times at which bars close; none: as fast as it can."""

    follow: Path | None = None
    """A CSV or Parquet file, or a folder with one file per symbol, that another program appends bars to."""

    follow_clock: FollowClock = "utc"
    """By which clock bars of a followed file close: this machine's (utc), or the times in the file alone (bars), where
    a bar has closed once the next one begins."""

    bar_wait_s: float = 5.0
    """How long after its close a bar that some symbol lacks is waited for, in seconds; then the others go on."""

    bar_fetches: int = 3
    """How often a missed bar is fetched again, a second apart, before the next decision."""

    silent_bars: int = 3
    """So many bars in a row that do not come while the market is open are told as a gap."""

    on_gap: OnGap = "wait"
    """What a gap in the bars does: no orders until bars are complete again (wait), or close all positions (flatten)."""

    warmup_bars: int | None = None
    """Number of bars before the start to load from the broker or a followed file; none: the latest 500 of the broker,
    or the whole file. A replay loads all that there are."""

    def __post_init__(self) -> None:
        if self.replay is not None and self.follow is not None:
            raise UserError("replay and follow each say where bars come from; leave one of them out.")
        for name in ("replay_from", "speed"):
            if getattr(self, name) is not None and self.replay is None:
                raise UserError(f"{name} is about a replay; name recorded bars with replay, or leave it out.")
        _ = self.replay_begins
        if self.speed is not None:
            check_positive("speed", self.speed)
        check_choice("follow_clock", self.follow_clock, get_args(FollowClock))
        check_non_negative("bar_wait_s", self.bar_wait_s)
        check_count("bar_fetches", self.bar_fetches, minimum=0)
        check_count("silent_bars", self.silent_bars)
        check_choice("on_gap", self.on_gap, get_args(OnGap))
        if self.warmup_bars is not None:
            check_count("warmup_bars", self.warmup_bars, minimum=0)

    @property
    def replay_begins(self) -> np.datetime64 | None:
        """`replay_from`, read. Raises UserError where it is no time."""
        if self.replay_from is None:
            return None
        try:
            time: np.datetime64 = np.datetime64(self.replay_from.replace(" ", "T", 1), "ns")
        except ValueError:
            time = np.datetime64("NaT", "ns")
        if np.isnat(time):
            raise UserError(
                f'replay_from must be a time such as 2024-03-01 or 2024-03-01T14:30, but got "{self.replay_from}".'
            )
        return time
