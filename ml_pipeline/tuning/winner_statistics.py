"""Statistics and a verdict in words: is the best trial of a study more than the luckiest one?

The formulas are in `selection`; this module decides what counts, and `finished_trials` reads it from the study. Every
finished trial was an attempt, including pruned ones and those that never traded, so all count as trials. Each trial in
turn is the best of its scored checkpoints, which the trials' Sharpe ratios do not show. So the deflated Sharpe ratio is
computed twice, against the luckiest of all trials and against the luckiest of all checkpoints, and the verdict uses the
lower one.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ml_pipeline.config.json_object import without_nan
from ml_pipeline.tuning.selection import (
    BLOCKS,
    FloatArray,
    Overfitting,
    RecordMoments,
    deflated_sharpe_ratio,
    effective_trials,
    expected_maximum_sharpe,
    minimum_track_record_length,
    moments_of,
    null_variance,
    probability_of_backtest_overfitting,
)
from ml_pipeline.tuning.study_files import kind_of, known_folders
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, read_validation_returns

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

LEVEL = 0.95
"""Smallest deflated Sharpe ratio that is evidence. The luckiest of noise trials reaches 0.5 on average."""

NEEDS_TWO = "the winner and at least one other trial need returns that vary"
"""The condition for a deflated Sharpe ratio."""

Evidence = Literal["evidence", "no evidence"]


@dataclass(frozen=True, eq=False)
class JudgedTrial:
    """A finished trial. value: its score, higher is better; None or not finite: no score.

    returns: of its best checkpoint on validation data, if any. folder: of the run that earned them.
    n_checkpoints: number of scored checkpoints. complete: not pruned; only a complete trial can win.
    """

    number: int
    value: float | None
    folder: Path | None
    returns: ValidationReturns | None
    n_checkpoints: int = 1
    complete: bool = True

    @property
    def never_traded(self) -> bool:
        """Whether its best checkpoint held cash in every bar of the validation data."""
        return self.returns is not None and not self.returns.returns.any()


@dataclass(frozen=True, eq=False)
class Judgement:
    """The winner of a study and its statistics. Undefined figures are NaN; Sharpe ratios are annualized.

    winner: see `winner_of`.
    evidence: "evidence" if `dsr` is at least 0.95.
    dsr: the deflated Sharpe ratio, the lower of the two below.
    n_trials: finished trials. n_with_returns: those with a Sharpe ratio. n_checkpoints: scored checkpoints of all
    trials. n_effective: about how many independent trials they are worth. n_bars: bars of the winner's returns.
    sharpe: of the winner. sharpe_variance: of the trials' Sharpe ratios.
    expected_maximum: the expected Sharpe ratio of the luckiest of n_trials noise trials with the same spread.
    dsr_of_trials: the deflated Sharpe ratio of Bailey and López de Prado, against expected_maximum.
    expected_maximum_of_checkpoints: the same for n_checkpoints independent attempts of true Sharpe ratio 0 on n_bars.
    dsr_of_checkpoints: the deflated Sharpe ratio against expected_maximum_of_checkpoints.
    pbo: the probability of backtest overfitting, from pbo_blocks blocks of bars. logits: of its test, one per split.
    min_track_record: bars that would show the winner's Sharpe ratio above 0 at 95 %, if it were the only trial.
    """

    winner: JudgedTrial
    evidence: Evidence
    dsr: float
    n_trials: int
    n_with_returns: int
    n_checkpoints: int
    n_effective: float
    n_bars: int
    periods_per_year: float
    sharpe: float
    sharpe_variance: float
    expected_maximum: float
    dsr_of_trials: float
    expected_maximum_of_checkpoints: float
    dsr_of_checkpoints: float
    pbo: float
    pbo_blocks: int
    min_track_record: float
    logits: FloatArray

    def described(self) -> dict[str, Any]:
        """The figures for a JSON file, with the winner's number and the sentences; undefined figures are None."""
        figures = {name: value for name, value in vars(self).items() if name != "logits"}
        return {**without_nan(figures), "winner": self.winner.number, "sentences": list(self.sentences())}

    def sentences(self) -> tuple[str, ...]:
        """The verdict in words, then the figures behind it."""
        return (
            self._verdict(),
            f"Trial {self.winner.number}, the best of {self.n_trials:,}, has an annualized Sharpe ratio of "
            f"{_number(self.sharpe)} on {self.n_bars:,} bars of validation data, after costs.",
            *self._about_deflation(),
            self._about_overfitting(),
            self._about_length(),
            *self._about_correlation(),
        )

    def _verdict(self) -> str:
        if math.isnan(self.dsr):
            return "No evidence: the deflated Sharpe ratio of the winner is undefined."
        if self.evidence == "evidence":
            return "Evidence: the winner did better on validation data than luck explains, counting all attempts."
        if self.dsr < 0.5:
            return "No evidence: the winner did no better than the luckiest of as many trials without skill."
        return (
            "No evidence: the winner did better than the luckiest of as many trials without skill, but not by enough."
        )

    def _about_deflation(self) -> tuple[str, ...]:
        if math.isnan(self.dsr):
            return (f"Deflated Sharpe ratio: undefined; {NEEDS_TWO}.",)
        return (
            f"The luckiest of {self.n_trials:,} trials without any skill would be expected to reach "
            f"{_number(self.expected_maximum)}; the luckiest of all {self.n_checkpoints:,} checkpoints that were "
            f"scored, {_number(self.expected_maximum_of_checkpoints)}.",
            f"Deflated Sharpe ratio: {_number(self.dsr)}, the lower of {_number(self.dsr_of_trials)} counting trials "
            f"and {_number(self.dsr_of_checkpoints)} counting checkpoints. At least {LEVEL:g} is evidence; the "
            "luckiest of trials without skill has about 0.5.",
        )

    def _about_overfitting(self) -> str:
        if math.isnan(self.pbo):
            return "Probability of backtest overfitting: undefined; it needs two trials that differ, and 20 bars."
        means = (
            "which speaks against the winner: the trial that is best on half of the bars is mostly below average on "
            "the other half. Either the trials are much alike, or the winner was lucky."
            if self.pbo > 0.5
            else "the share of splits in halves in which the best of one half is average or worse in the other."
        )
        return f"Probability of backtest overfitting: {_number(self.pbo)}, {means}"

    def _about_length(self) -> str:
        if math.isnan(self.min_track_record):
            return "Minimum track record length: undefined."
        if math.isinf(self.min_track_record):
            return "Minimum track record length: no length suffices, because the Sharpe ratio is not above 0."
        return (
            f"Minimum track record length: {math.ceil(self.min_track_record):,} bars would show this Sharpe ratio to "
            f"be above 0 at {LEVEL:.0%}, if it were the only trial; there are {self.n_bars:,}."
        )

    def _about_correlation(self) -> tuple[str, ...]:
        if math.isnan(self.n_effective) or round(self.n_effective) >= self.n_trials:
            return ()
        return (
            f"The trials' returns are correlated: they are worth about {self.n_effective:,.0f} independent trials. The "
            f"figures above count all {self.n_trials:,}, which is stricter.",
        )


def judge(trials: Sequence[JudgedTrial], *, n_blocks: int = BLOCKS) -> Judgement | None:
    """The judgement of a study's finished trials; None if no trial has returns, or none is complete with a value.

    The variance of Sharpe ratios is over the trials that have one; all trials count as attempts. CSCV and the number of
    independent trials use the bars that all trials share. n_blocks: of CSCV, at most.
    """
    winner = winner_of(trials)
    records = {trial.number: trial.returns for trial in trials if trial.returns is not None}
    if winner is None or not records:
        return None
    moments = {number: moments_of(record.returns) for number, record in records.items()}
    sharpes = np.array([each.sharpe for each in moments.values() if not math.isnan(each.sharpe)])
    variance = float(sharpes.var(ddof=1)) if len(sharpes) > 1 else math.nan
    n_trials, n_checkpoints = len(trials), sum(trial.n_checkpoints for trial in trials)
    own = moments.get(winner.number, RecordMoments(math.nan, math.nan, math.nan, 0))
    by_luck = {"variance": 0.0 if n_trials == 1 else variance, "n_trials": n_trials}
    of_all = {"variance": null_variance(own.n_bars), "n_trials": n_checkpoints}
    dsrs = [deflated_sharpe_ratio(own, **counted) for counted in (by_luck, of_all)]
    dsr = float(np.min(dsrs))  # NaN if one of them is
    record = records.get(winner.number, next(iter(records.values())))
    year = record.periods_per_year
    together = side_by_side(records)
    overfitting = probability_of_backtest_overfitting(together, n_blocks=n_blocks) if len(records) > 1 else _UNDEFINED
    return Judgement(
        winner=winner,
        evidence="evidence" if dsr >= LEVEL else "no evidence",
        dsr=dsr,
        n_trials=n_trials,
        n_with_returns=len(sharpes),
        n_checkpoints=n_checkpoints,
        n_effective=effective_trials(together, n_trials),
        n_bars=own.n_bars,
        periods_per_year=year,
        sharpe=own.sharpe * math.sqrt(year),
        sharpe_variance=variance * year,
        expected_maximum=expected_maximum_sharpe(**by_luck) * math.sqrt(year),
        dsr_of_trials=dsrs[0],
        expected_maximum_of_checkpoints=expected_maximum_sharpe(**of_all) * math.sqrt(year),
        dsr_of_checkpoints=dsrs[1],
        pbo=overfitting.probability,
        pbo_blocks=overfitting.n_blocks,
        min_track_record=minimum_track_record_length(own, level=LEVEL),
        logits=overfitting.logits,
    )


def winner_of(trials: Sequence[JudgedTrial]) -> JudgedTrial | None:
    """The complete trial with the highest value; the earliest one of a tie.

    None if no trial has a finite value, or if the best one never traded: see `why_no_winner`.
    """
    best = _best(trials)
    return None if best is None or best.never_traded else best


def why_no_winner(trials: Sequence[JudgedTrial]) -> str | None:
    """A sentence if the best trial never traded; None if it did, or if no trial has a value."""
    best = _best(trials)
    if best is None or not best.never_traded:
        return None
    others = [each for each in trials if each.complete and not each.never_traded]
    told = "and every trial that traded did worse" if others else "and neither did any other trial"
    return (
        f"There is no winner: trial {best.number} has the highest value, {best.value:g}, but it never traded on the "
        f"validation data, {told}. Train for longer, or search other settings, features or costs."
    )


def _best(trials: Sequence[JudgedTrial]) -> JudgedTrial | None:
    with_value = [each for each in trials if each.complete and each.value is not None and math.isfinite(each.value)]
    return max(with_value, key=lambda each: (each.value, not each.never_traded, -each.number), default=None)


_UNDEFINED = Overfitting(math.nan, np.empty(0), 0)


def side_by_side(records: Mapping[int, ValidationReturns]) -> FloatArray:
    """The returns of all records (T, N) at the times that they share."""
    first, *others = records.values()
    if all(np.array_equal(each.time, first.time) for each in others):
        return np.column_stack([each.returns for each in records.values()])
    times = reduce(np.intersect1d, [each.time for each in records.values()])
    return np.column_stack([each.returns[np.searchsorted(each.time, times)] for each in records.values()])


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"


_FOLD = re.compile(r"-fold-\d+$")


def finished_trials(study: "Study", study_folder: Path) -> list[JudgedTrial]:
    """Complete and pruned trials by number, without those that never began (impossible and void ones).

    A trial that continues another one replaces it. With several seeds, the returns are those of the run with the
    median Sharpe ratio (the lower of two in the middle); with several folds, those of all folds in order.
    Raises UserError if a file of returns cannot be read.
    """
    finished = [trial for trial in study.get_trials(deepcopy=False) if kind_of(trial) in {"complete", "pruned"}]
    continued = {trial.user_attrs.get("continues") for trial in finished}
    return [_judged(trial, study_folder) for trial in finished if trial.number not in continued]


def _judged(trial: "FrozenTrial", study_folder: Path) -> JudgedTrial:
    folders = known_folders(study_folder, trial.user_attrs)
    n_evaluations = trial.user_attrs.get("evaluations", len(trial.intermediate_values))
    records = [(folder, record) for folder in folders if (record := read_validation_returns(folder)) is not None]
    folder, returns = _one_record(records) if records else (folders[0] if folders else None, None)
    return JudgedTrial(
        trial.number,
        trial.value,
        folder,
        returns,
        n_checkpoints=max(1, math.ceil(n_evaluations / max(1, len(folders)))),
        complete=trial.state.name == "COMPLETE",
    )


def _one_record(records: Sequence[tuple[Path, ValidationReturns]]) -> tuple[Path, ValidationReturns]:
    """The returns that represent a trial, and the folder of their run; with folds, the folder of the latest."""
    if len(records) > 1 and all(_FOLD.search(folder.name) for folder, _ in records):
        in_order = sorted(records, key=lambda each: each[1].time[:1].tolist())
        return in_order[-1][0], _one_after_another([record for _, record in in_order])
    by_sharpe = sorted(records, key=lambda each: _or_cash(each[1].sharpe))
    return by_sharpe[(len(by_sharpe) - 1) // 2]


def _or_cash(sharpe: float) -> float:
    """The Sharpe ratio for ranking: a run that never traded has none and ranks as cash, 0."""
    return 0.0 if math.isnan(sharpe) else sharpe


def _one_after_another(records: Sequence[ValidationReturns]) -> ValidationReturns:
    """The records joined in order; if two have the same time, the first one counts."""
    times, rows = np.unique(np.concatenate([each.time for each in records]), return_index=True)
    returns = np.concatenate([each.returns for each in records])[rows]
    return ValidationReturns(times, returns, records[0].periods_per_year)
