"""Settings of retraining: how often, on which bars, how long, and what a new model must achieve to trade."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.checks import check_choice, check_count, check_number, check_positive
from ml_pipeline.config.errors import UserError

RetrainFrom = Literal["deployed", "anew"]
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


class Interval(NamedTuple):
    """The interval between two retrainings: a time span or a number of bars; the other one is None."""

    span: np.timedelta64 | None
    bars: int | None


@dataclass(frozen=True, kw_only=True)
class RetrainConfig:
    """Retraining of the model while it trades.

    Raises UserError if a value is out of range.
    """

    retrain_every: int | str | None = None
    """Interval between retrainings: a time span such as 7d or 12h, or a number of bars such as 2000; none: never."""

    retrain_from: RetrainFrom = "deployed"
    """Starting point of a retraining: the weights and the scaler of the current model (deployed), or neither (anew)."""

    retrain_bars: int | None = None
    """Number of latest bars to use; none: all."""

    retrain_data: Path | None = None
    """File or folder of bars from before the session, added to the training bars; none: bars of the session only."""

    retrain_validation: float = 0.2
    """Fraction of the session's bars, the latest, kept for validation: the new model is compared with the current one
    on them."""

    retrain_timesteps: int | None = None
    """Environment steps of a retraining; none: as many as the current model was trained for."""

    retrain_min_dsr: float = 0.95
    """Lowest deflated Sharpe ratio on the validation bars, counting all checkpoints, for a new model to trade; 0: no
    minimum."""

    retrain_margin: float = 1.0
    """Standard errors by which a new model must beat the current one on the validation bars; a larger value switches
    less often."""

    retrain_cores: int = 1
    """Number of processor cores for a retraining, at the lowest priority."""

    retrain_time_limit_s: float = 6 * 3_600.0
    """Time limit of a retraining in seconds; after it the retraining is ended."""

    retrain_wait: bool = False
    """Wait at the bar where a retraining is due until it has finished, so that a replay has the same result at any
    speed; otherwise the current model keeps trading meanwhile."""

    retrain_models_dir: Path | None = None
    """Folder of models for new versions; none: the folder that the model was deployed in, or models/ in the session's
    folder."""

    def __post_init__(self) -> None:
        _ = self.interval
        check_choice("retrain_from", self.retrain_from, get_args(RetrainFrom))
        for name in ("retrain_bars", "retrain_timesteps"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_count("retrain_cores", self.retrain_cores)
        check_positive("retrain_time_limit_s", self.retrain_time_limit_s)
        check_number("retrain_validation", self.retrain_validation, lambda part: 0 < part < 1, "between 0 and 1")
        check_number("retrain_min_dsr", self.retrain_min_dsr, lambda part: 0 <= part <= 1, "from 0 to 1")
        check_number("retrain_margin", self.retrain_margin, lambda part: 0 <= part < math.inf, "0 or more, and finite")

    @property
    def interval(self) -> Interval | None:
        """`retrain_every` as an interval; None: never. Raises UserError if it is neither a span nor a number of
        bars."""
        return None if self.retrain_every is None else read_interval(self.retrain_every)


def read_interval(text: int | str) -> Interval:
    """Parse a time span such as 7d, or a number of bars. Raises UserError for anything else.

    >>> read_interval("12h").span, read_interval("500").bars
    (np.timedelta64(43200,'s'), 500)
    """
    match = re.fullmatch(r"\s*([1-9]\d{0,8})\s*([smhdw]?)\s*", str(text))
    if match is None:
        raise UserError(
            f'retrain_every must be a span such as 7d, 12h or 90m, or a number of bars such as 2000, but got "{text}".'
        )
    number, unit = int(match[1]), match[2]
    if not unit:
        return Interval(None, number)
    return Interval(np.timedelta64(number * _SECONDS[unit], "s"), None)


Times = NDArray[np.datetime64]


def due_bar(times: Times, since: np.datetime64, interval: Interval) -> int | None:
    """Index of the bar at which the latest retraining after `since` is due; None if none is due yet.

    times: datetime64 (T,) of the bars so far, in order. If several are due, as after a stop of weeks, only the latest
    counts: it has all the bars of the others.

    >>> days = np.arange("2024-01-01", "2024-01-11", dtype="datetime64[D]")
    >>> due_bar(days, days[0], Interval(np.timedelta64(4, "D"), None))
    8
    >>> due_bar(days, days[0], Interval(None, 6))
    6
    >>> due_bar(days, days[8], Interval(None, 6))
    """
    after = int(np.searchsorted(times, since, side="right"))  # index of the first bar after `since`
    if interval.bars is not None:
        n_times = (len(times) - after) // interval.bars
        return after + n_times * interval.bars - 1 if n_times else None
    assert interval.span is not None
    if after == len(times):
        return None
    n_times = int((times[-1] - since) / interval.span)
    return int(np.searchsorted(times, since + n_times * interval.span)) if n_times else None
