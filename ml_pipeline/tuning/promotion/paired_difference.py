"""How much better one model is than another on the same bars or episodes, with the standard error of the difference.

Pure functions. Differences are paired: what happened to both, such as a market that rose, drops out of them.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.evaluation.uncertainty import long_run_covariance
from ml_pipeline.trading.market.data import FloatArray

_FEWEST = {"bar": 10, "episode": 2}
"""With fewer there is no standard error."""
_LEAST_GROWTH = 1e-6
"""Of an account in a bar, in place of 0: a ruined account has no logarithm."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of challenger minus incumbent over n pairs, and its standard error; NaN for too few pairs.

    challenger, incumbent: the means themselves: log returns per bar, or returns of episodes.
    periods_per_year: bars per year; None for episodes.
    """

    unit: Literal["bar", "episode"]
    n: int
    difference: float
    standard_error: float
    challenger: float
    incumbent: float
    periods_per_year: float | None = None

    def exceeds(self, margin: float) -> bool:
        """Whether the difference is more than 0, and than `margin` standard errors."""
        return self.difference > 0 and self.difference > margin * self.standard_error

    def as_json(self) -> dict[str, Any]:
        """The figures for a JSON file; None for what is undefined."""
        values = {**vars(self)}
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}

    def __str__(self) -> str:
        """The difference in words: "+1.2e-05 ± 4e-06 per bar (...)"."""
        figures = f"{self.difference:+.3g} ± {self.standard_error:.2g}"
        if self.unit == "episode":
            means = f"{self.challenger:,.4g} against {self.incumbent:,.4g}"
            return f"{figures} per episode ({means}, over {counted(self.n, 'episode')} of the same seeds)"
        yearly = self.difference * (self.periods_per_year or math.nan)
        return f"{figures} log return per bar ({yearly:+.3g} a year, over {counted(self.n, 'bar')})"


def difference_of_returns(challenger: FloatArray, incumbent: FloatArray, periods_per_year: float) -> PairedDifference:
    """The difference in log returns of two records of simple returns over the same bars, (n,) each.

    The standard error allows for autocorrelation, as `uncertainty.long_run_covariance` does: Newey and West 1987.
    """
    ours, theirs = (np.log(np.maximum(1.0 + each, _LEAST_GROWTH)) for each in (challenger, incumbent))
    n = len(ours)
    error = math.nan
    if n >= _FEWEST["bar"]:
        error = math.sqrt(max(0.0, long_run_covariance(ours - theirs)[0, 0]) / n)
    return _paired("bar", ours, theirs, error, periods_per_year)


def difference_of_episodes(challenger: FloatArray, incumbent: FloatArray) -> PairedDifference:
    """The difference in returns of two policies' episodes of the same seeds, (n,) each, which are independent pairs."""
    n = len(challenger)
    enough = n >= _FEWEST["episode"]
    error = float(np.std(challenger - incumbent, ddof=1) / math.sqrt(n)) if enough else math.nan
    return _paired("episode", challenger, incumbent, error, None)


def _paired(
    unit: Literal["bar", "episode"], ours: FloatArray, theirs: FloatArray, error: float, per_year: float | None
) -> PairedDifference:
    means = [float(each.mean()) if len(each) else math.nan for each in (ours - theirs, ours, theirs)]
    return PairedDifference(unit, len(ours), means[0], error, means[1], means[2], per_year)
