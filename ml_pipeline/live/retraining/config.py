"""The settings of retraining: how often, on which bars, how long, and what a new model must be to trade."""

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
    """How much lies between two retrainings: a span of time or a number of bars; the other one is None."""

    span: np.timedelta64 | None
    bars: int | None


@dataclass(frozen=True, kw_only=True)
class RetrainConfig:
    """A model that is kept current while it trades.

    Raises UserError where a value is out of range.
    """

    retrain_every: int | str | None = None
    """Train anew each time so much has come: a span such as 7d or 12h, or a number of bars; none: never."""

    retrain_from: RetrainFrom = "deployed"
    """What a retraining begins with: the weights and the scaling of the model that trades (deployed), or neither
    (anew)."""

    retrain_bars: int | None = None
    """Number of latest bars that it may use; none: all that there are."""

    retrain_data: Path | None = None
    """File or folder of bars from before the session that it learns from as well; none: from those of the session
    alone."""

    retrain_validation: float = 0.2
    """Fraction of the session's bars, the latest, that it is not trained on: both models are compared there."""

    retrain_timesteps: int | None = None
    """Environment steps of a retraining; none: as many as the model that trades was trained for."""

    retrain_min_dsr: float = 0.95
    """Least deflated Sharpe ratio there, as the best of all its checkpoints, for a new model to trade; 0: any."""

    retrain_margin: float = 1.0
    """By more than so many standard errors it must beat the model that trades on those bars."""

    retrain_cores: int = 1
    """Number of processor cores that a retraining may use; it has the lowest priority there."""

    retrain_time_limit_s: float = 6 * 3_600.0
    """Longest time of a retraining in seconds; one that takes longer is ended."""

    retrain_wait: bool = False
    """Wait for a retraining at the bar where it is due, which gives a replay the same result at any speed; otherwise
    the model before it goes on until then."""

    retrain_models_dir: Path | None = None
    """Folder of models that new versions are written to; none: the one that the model was deployed in, or models/ in
    the folder of the session."""

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
        """`retrain_every`, read; None: never. Raises UserError where it is neither a span nor a number of bars."""
        return None if self.retrain_every is None else read_interval(self.retrain_every)


def read_interval(text: int | str) -> Interval:
    """The interval that a text such as 7d, or a number of bars, means. Raises UserError for anything else.

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
    """The index of the bar at which the latest retraining after `since` is due; None where none is due yet.

    times: datetime64 (T,) of the bars so far, in order. Where several are due, as after a stop of weeks, the latest
    takes their place: it has all bars that they would have had.

    >>> days = np.arange("2024-01-01", "2024-01-11", dtype="datetime64[D]")
    >>> due_bar(days, days[0], Interval(np.timedelta64(4, "D"), None))
    8
    >>> due_bar(days, days[0], Interval(None, 6))
    6
    >>> due_bar(days, days[8], Interval(None, 6))
    """
    after = int(np.searchsorted(times, since, side="right"))  # of the first bar that came since
    if interval.bars is not None:
        n_times = (len(times) - after) // interval.bars
        return after + n_times * interval.bars - 1 if n_times else None
    assert interval.span is not None
    if after == len(times):
        return None
    n_times = int((times[-1] - since) / interval.span)
    return int(np.searchsorted(times, since + n_times * interval.span)) if n_times else None
