"""Settings of the feed: where bars come from, and what happens if they are missing."""

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
    """Where bars come from: a replay, a growing file, or else the broker.

    Raises UserError if a value is out of range, or two settings exclude each other.
    """

    replay: Path | None = None
    """Recorded bars to trade on as if they arrived now: a CSV or Parquet file, or a folder with one file per symbol."""

    replay_from: str | None = None
    """Time of the first bar that a replay trades on, such as 2024-03-01 or 2024-03-01T14:30 (UTC); earlier bars warm
    up the features. None: the first bar with complete features."""

    speed: float | None = None
    """Speed of a replay as a multiple of real time, such as 60; none: as fast as possible."""

    follow: Path | None = None
    """CSV or Parquet file, or folder with one file per symbol, to which another program appends bars."""

    follow_clock: FollowClock = "utc"
    """Clock that closes the bars of a followed file: this machine's (utc), or the times in the file (bars), so that a
    bar closes when the next one begins."""

    bar_wait_s: float = 5.0
    """Seconds to wait after the close for symbols whose bar is missing; then the session continues without them."""

    bar_fetches: int = 3
    """How often to fetch a missing bar from the history, one second apart, before the next decision."""

    silent_bars: int = 3
    """Number of missing bars in a row, while the market is open, that are reported as a gap."""

    on_gap: OnGap = "wait"
    """What to do at a gap in the bars: place no orders until bars are complete again (wait), or close all positions
    (flatten)."""

    warmup_bars: int | None = None
    """Number of bars before the start to load from the broker or a followed file; none: the latest 500 of the broker,
    or the whole file. A replay loads all earlier bars."""

    def __post_init__(self) -> None:
        if self.replay is not None and self.follow is not None:
            raise UserError("replay and follow are two sources of bars; use one of them.")
        for name in ("replay_from", "speed"):
            if getattr(self, name) is not None and self.replay is None:
                raise UserError(f"{name} applies to a replay; set replay to recorded bars, or leave it out.")
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
        """`replay_from` as a time. Raises UserError if it is not a time."""
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
