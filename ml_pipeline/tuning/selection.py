"""Statistics of the best of many trials: how much selection inflates a Sharpe ratio, and how likely it is to persist.

Pure functions. Sharpe ratios are per bar, not annualized, unless stated otherwise. Returns are simple returns per bar
after costs: float64 (T,), or (T, N) for N trials. Undefined figures are NaN.

Sources: Bailey and López de Prado 2012, "The Sharpe Ratio Efficient Frontier", Journal of Risk 15(2); the same 2014,
"The Deflated Sharpe Ratio", Journal of Portfolio Management 40(5); Bailey, Borwein, López de Prado and Zhu 2017, "The
Probability of Backtest Overfitting", Journal of Computational Finance 20(4).
"""

import math
from itertools import combinations
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError

FloatArray = NDArray[np.float64]

BLOCKS = 16
"""Number of blocks into which CSCV divides the bars, if there are enough: 12,870 ways to choose half of them."""
_FEWEST_BLOCKS, _FEWEST_BARS = 4, 5  # blocks, and bars in each
_NORMAL = NormalDist()
# A deviation below this fraction of the largest return is a rounding error: the returns do not vary.
_ROUNDING = 1e-12
# Sharpe ratios per bar that differ only in later decimals are equal: the order of summation differs.
_DECIMALS = 11
# Largest number of Sharpe ratios at once: 16 MB per array.
_AT_ONCE = 2_000_000


class RecordMoments(NamedTuple):
    """The moments of a series of returns that the statistics use.

    sharpe: mean / std (ddof 1), per bar. skewness: m3 / m2^1.5. kurtosis: m4 / m2^2, 3 for a normal distribution.
    n_bars: T. The first three are NaN if returns do not vary.
    """

    sharpe: float
    skewness: float
    kurtosis: float
    n_bars: int


class Overfitting(NamedTuple):
    """The result of CSCV.

    probability: that the best trial on one half of the bars is at most the median trial on the other; NaN if undefined.
    logits: float64 (C,), ln(w / (1 - w)) for each way to choose half of the blocks; w, 0 to 1, is the relative rank in
    the other half of the trial that is best in the chosen half. Ties for the first place are averaged.
    n_blocks: number of blocks of bars.
    """

    probability: float
    logits: FloatArray
    n_blocks: int


def moments_of(returns: FloatArray) -> RecordMoments:
    """The moments of returns (T,). Raises UserError if a return is missing or not finite."""
    values = _finite(returns, 1)
    n = len(values)
    if n < 2 or not _varies(values[:, None])[0]:
        return RecordMoments(math.nan, math.nan, math.nan, n)
    mean, deviation = float(values.mean()), float(values.std())
    z = (values - mean) / deviation
    squares = z * z
    return RecordMoments(mean / float(values.std(ddof=1)), float((squares * z).mean()), float((squares**2).mean()), n)


def sharpe_ratios(returns: FloatArray) -> FloatArray:
    """The Sharpe ratio of each column of returns (T, N), float64 (N,): mean / std (ddof 1); NaN if it is constant.

    Raises UserError if a return is missing or not finite.
    """
    values = _finite(returns, 2)
    if len(values) < 2:
        return np.full(values.shape[1], np.nan)
    deviations = values.std(axis=0, ddof=1)
    return np.asarray(
        np.divide(values.mean(axis=0), deviations, out=np.full(values.shape[1], np.nan), where=_varies(values))
    )


def expected_maximum_sharpe(variance: float, n_trials: float) -> float:
    """The expected highest Sharpe ratio of independent trials whose true Sharpe ratio is 0: the effect of luck alone.

    sqrt(V) ((1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e))), Z the normal quantile, g = 0.5772.
    variance: V, of the trials' Sharpe ratios; the result has their unit. n_trials: N.
    0 for one trial; NaN if the variance is NaN. Raises UserError for a variance below 0 or less than one trial.
    Source: the False Strategy Theorem, in Bailey and López de Prado 2014, eq. 1 with a mean of 0.

    >>> round(expected_maximum_sharpe(0.5, 100) / 250**0.5, 4)
    0.1132
    """
    if not 1 <= n_trials < math.inf:
        raise UserError(f"n_trials must be at least 1, but got {n_trials:g}.")
    if variance < 0 or math.isinf(variance):
        raise UserError(f"The variance of Sharpe ratios must be 0 or more, and finite, but got {variance:g}.")
    if n_trials == 1:
        return 0.0
    gamma = float(np.euler_gamma)
    # Z(1 - p) as -Z(p), which stays precise for tiny p
    quantiles = (1 - gamma) * -_NORMAL.inv_cdf(1 / n_trials) + gamma * -_NORMAL.inv_cdf(1 / (n_trials * math.e))
    return math.sqrt(variance) * quantiles


def null_variance(n_bars: int) -> float:
    """The variance of a Sharpe ratio per bar estimated from T bars, if the true one is 0: 1 / (T - 1).

    It holds for any skewness and kurtosis. NaN for fewer than 2 bars.
    Source: the variance of an estimated Sharpe ratio in Bailey and López de Prado 2012, with a true one of 0.
    """
    return 1 / (n_bars - 1) if n_bars > 1 else math.nan


def probabilistic_sharpe_ratio(record: RecordMoments, benchmark: float = 0.0) -> float:
    """The probability that the true Sharpe ratio of a record is above `benchmark` (per bar), 0 to 1.

    Phi((SR - SR*) sqrt(T - 1) / sqrt(1 - g3 SR + (g4 - 1) / 4 SR^2)), g3 skewness, g4 kurtosis.
    NaN if the returns do not vary, for fewer than 3 bars, and if the number under the root is not positive.
    Source: Bailey and López de Prado 2012, "Probabilistic Sharpe Ratio".
    """
    spread = _spread(record)
    if record.n_bars < 3 or not spread > 0 or math.isnan(benchmark):
        return math.nan
    return _NORMAL.cdf((record.sharpe - benchmark) * math.sqrt((record.n_bars - 1) / spread))


def deflated_sharpe_ratio(record: RecordMoments, *, variance: float, n_trials: float) -> float:
    """The probability that the best of many trials has a true Sharpe ratio above 0, 0 to 1.

    It is the probabilistic Sharpe ratio against `expected_maximum_sharpe`, the effect of luck on as many trials. If all
    trials are noise, the best reaches 0.5 on average; 0.95 is the usual level of evidence.
    record: of the best trial. variance: of the trials' Sharpe ratios, per bar. NaN and errors: as for those two.
    Source: Bailey and López de Prado 2014, eq. 2.

    >>> example = RecordMoments(2.5 / 250**0.5, -3.0, 10.0, 1250)
    >>> round(deflated_sharpe_ratio(example, variance=0.5 / 250, n_trials=100), 4)
    0.9004
    """
    return probabilistic_sharpe_ratio(record, expected_maximum_sharpe(variance, n_trials))


def minimum_track_record_length(record: RecordMoments, benchmark: float = 0.0, *, level: float = 0.95) -> float:
    """The number of bars that would show this Sharpe ratio to be above `benchmark` at this level.

    1 + (1 - g3 SR + (g4 - 1) / 4 SR^2) (Z(level) / (SR - SR*))^2; infinite if SR is not above the benchmark; NaN as
    for `probabilistic_sharpe_ratio`. Raises UserError for a level outside 0.5 to 1.
    Source: Bailey and López de Prado 2012, "Track Record Length".
    """
    if not 0.5 < level < 1:
        raise UserError(f"level must be between 0.5 and 1, but got {level:g}.")
    spread = _spread(record)
    if not spread > 0 or math.isnan(benchmark):
        return math.nan
    if record.sharpe <= benchmark:
        return math.inf
    return 1 + spread * (_NORMAL.inv_cdf(level) / (record.sharpe - benchmark)) ** 2


def effective_trials(returns: FloatArray, n_trials: int | None = None) -> float:
    """About how many independent trials the correlated ones are worth: r + (1 - r) N, between 1 and N.

    r: the mean correlation between two different columns of returns (T, N), at least 0; columns that do not vary are
    left out. n_trials: N, if not all trials have returns; None: the number of columns. NaN for fewer than 2 columns.
    Raises UserError if a return is missing or not finite.
    Source: Bailey and López de Prado 2014, appendix A.3.
    """
    values = _finite(returns, 2)
    values = values[:, _varies(values)] if len(values) > 1 else values[:, :0]
    n = values.shape[1]
    if n < 2:
        return math.nan
    # For standardized columns, the sum of all correlations is the mean square of the rows' sums; N of them are of a
    # column with itself.
    weights = 1 / values.std(axis=0)
    row_sums = values @ weights - float(values.mean(axis=0) @ weights)
    correlation = (float((row_sums**2).mean()) - n) / (n * (n - 1))
    correlation = min(max(correlation, 0.0), 1.0)
    return correlation + (1 - correlation) * (n if n_trials is None else n_trials)


def probability_of_backtest_overfitting(returns: FloatArray, *, n_blocks: int = BLOCKS) -> Overfitting:
    """How often the trial that is best in one half of the bars is at most the median trial in the other half.

    Combinatorially symmetric cross-validation: the bars are divided into consecutive blocks whose sizes differ by at
    most one bar. Each half of the blocks chooses the trial with the highest Sharpe ratio, and the other half ranks it
    among all N: w = rank / (N + 1). The probability is the share of logits ln(w / (1 - w)) that are 0 or below: about
    0.5 if all trials are noise, near 0 if one trial is better everywhere.
    returns: (T, N), the same bars for all trials. n_blocks: an even number, reduced so that each block has 5 bars.
    Ties: equal Sharpe ratios share the mean of their ranks, and several best trials count in equal parts.
    A trial whose returns do not vary in a half has the Sharpe ratio 0 there, like cash.
    NaN for fewer than 2 trials, fewer than 20 bars, or identical trials. Raises UserError for an odd n_blocks or one
    below 4, and if a return is missing or not finite.
    Source: Bailey, Borwein, López de Prado and Zhu 2017, the procedure of CSCV.
    """
    if n_blocks % 2 or n_blocks < _FEWEST_BLOCKS:
        raise UserError(f"n_blocks must be an even number, at least {_FEWEST_BLOCKS}, but got {n_blocks}.")
    values = _finite(returns, 2)
    n_bars, n_trials = values.shape
    n_blocks = min(n_blocks, n_bars // _FEWEST_BARS // 2 * 2)
    if n_trials < 2 or n_blocks < _FEWEST_BLOCKS or not (values != values[:, :1]).any():
        return Overfitting(math.nan, np.empty(0), max(n_blocks, 0))
    sums = _BlockSums.of(values, n_blocks)
    chosen = _halves(n_blocks)
    step = max(1, _AT_ONCE // n_trials)
    parts = [
        _logits_of(sums.sharpes(chosen[start : start + step]), sums.sharpes(1 - chosen[start : start + step]))
        for start in range(0, len(chosen), step)
    ]
    logits, overfitted = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Overfitting(float(overfitted.mean()), logits, n_blocks)


class _BlockSums(NamedTuple):
    """The number of bars of each block, (S,); the sums of returns and of their squares per block and trial, (S, N)."""

    bars: FloatArray
    sums: FloatArray
    squares: FloatArray
    least: FloatArray
    """(N,): a smaller sum of squared deviations is a rounding error."""

    @classmethod
    def of(cls, values: FloatArray, n_blocks: int) -> "_BlockSums":
        blocks = np.array_split(values, n_blocks)
        return cls(
            np.array([len(block) for block in blocks], dtype=np.float64),
            np.array([block.sum(axis=0) for block in blocks]),
            np.array([(block**2).sum(axis=0) for block in blocks]),
            len(values) * (1e-7 * np.abs(values).max(axis=0)) ** 2,
        )

    def sharpes(self, taken: FloatArray) -> FloatArray:
        """Sharpe ratios (C, N) over the chosen blocks: `taken` is (C, S), 1 for a chosen block."""
        bars = (taken @ self.bars)[:, None]
        sums = taken @ self.sums
        deviations = taken @ self.squares - sums**2 / bars
        varies = deviations > self.least
        ratio = np.divide(sums / bars, np.sqrt(np.maximum(deviations, 0.0) / (bars - 1)), where=varies, out=sums * 0.0)
        return np.asarray(np.round(ratio, _DECIMALS))


def _halves(n_blocks: int) -> FloatArray:
    """Every way to choose half of the blocks, (C, S), 1 for a chosen block."""
    taken = np.array(list(combinations(range(n_blocks), n_blocks // 2)))
    halves = np.zeros((len(taken), n_blocks))
    np.put_along_axis(halves, taken, 1.0, axis=1)
    return halves


def _logits_of(inside: FloatArray, outside: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each split, (C,): the logit of the best trial inside, and whether it is 0 or below; ties are averaged."""
    n_trials = inside.shape[1]
    best = inside == inside.max(axis=1, keepdims=True)
    rows, columns = np.nonzero(best)
    of_best = outside[rows, columns][:, None]
    below, equal = (outside[rows] < of_best).sum(axis=1), (outside[rows] == of_best).sum(axis=1)
    relative = (below + (equal + 1) / 2) / (n_trials + 1)
    logits = np.log(relative / (1 - relative))
    n_best = best.sum(axis=1)
    mean_logits = np.bincount(rows, logits, len(inside)) / n_best
    overfitted = np.bincount(rows, (relative <= 0.5).astype(np.float64), len(inside)) / n_best
    return np.asarray(mean_logits), np.asarray(overfitted)


def _spread(record: RecordMoments) -> float:
    """T - 1 times the variance of the Sharpe ratio; NaN if the returns do not vary."""
    return 1 - record.skewness * record.sharpe + (record.kurtosis - 1) / 4 * record.sharpe**2


def _varies(values: FloatArray) -> NDArray[np.bool_]:
    """For each column of (T, N), whether its returns differ by more than rounding errors."""
    largest = np.maximum(np.abs(values).max(axis=0), _ROUNDING)
    return np.asarray(values.std(axis=0, ddof=1) > _ROUNDING * largest)


def _finite(returns: FloatArray, n_axes: int) -> FloatArray:
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != n_axes:
        shape = "(bars,)" if n_axes == 1 else "(bars, trials)"
        raise UserError(f"Returns must be of shape {shape}, but got {values.shape}.")
    if not (finite := np.isfinite(values)).all():
        where = tuple(int(each) for each in np.argwhere(~finite)[0])
        at = f"bar {where[0]}" + (f" of trial {where[1]}" if n_axes == 2 else "")
        raise UserError(f"Returns must be finite numbers, but {at} has {values[where]}; leave such trials out.")
    return values
