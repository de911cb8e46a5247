"""Whether the best trial of a study is more than the luckiest one: its statistics, and what they say in words.

The formulas are in `selection`; here is decided what is counted, and `finished_trials` reads it from the study. Every
finished trial was tried, pruned ones and those that never traded included, so all count as trials. Each trial in turn
is the best of the checkpoints that were scored in it, which the trials' Sharpe ratios do not show. So the deflated
Sharpe ratio is computed twice, once against the luckiest of all trials and once against the luckiest of all
checkpoints, and the lower one is the verdict's.
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
"""Of evidence: a deflated Sharpe ratio below says nothing. The luckiest of noise trials reaches 0.5 on average."""

NEEDS_TWO = "it needs returns that vary, of the winner and of another trial"
"""What a deflated Sharpe ratio needs."""

Evidence = Literal["evidence", "no evidence"]


@dataclass(frozen=True, eq=False)
class JudgedTrial:
    """A finished trial. value: its score, higher is better; None or not finite: none.

    returns: of its best checkpoint on validation data; None: there are none. folder: of the run that earned them.
    n_checkpoints: how many were scored. complete: not pruned; only such a one can win.
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
    """The winner of a study and its statistics; what is undefined is NaN. Sharpe ratios are annualized.

    winner: see `winner_of`.
    evidence: "evidence" where `dsr` is at least 0.95.
    dsr: the deflated Sharpe ratio, the lower of the two below.
    n_trials: finished trials. n_with_returns: of which so many have a Sharpe ratio. n_checkpoints: how many were scored
    in all trials. n_effective: about how many independent trials they are worth. n_bars: of the winner's record.
    sharpe: of the winner. sharpe_variance: of the trials' Sharpe ratios.
    expected_maximum: the Sharpe ratio of the luckiest of n_trials noise trials that spread as these do.
    dsr_of_trials: the deflated Sharpe ratio as Bailey and López de Prado have it, against that.
    expected_maximum_of_checkpoints: of n_checkpoints tries of true Sharpe ratio 0 on so many bars, all independent.
    dsr_of_checkpoints: the same against that.
    pbo: the probability of backtest overfitting, from pbo_blocks blocks of bars. logits: of its test, one per split.
    min_track_record: bars that a record as the winner's needs to be above 0 at 95 %, had it been the only one.
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
        """The figures for a JSON file, with the winner's number and the sentences; None for what is undefined."""
        figures = {name: value for name, value in vars(self).items() if name != "logits"}
        return {**without_nan(figures), "winner": self.winner.number, "sentences": list(self.sentences())}

    def sentences(self) -> tuple[str, ...]:
        """The verdict and what it rests on, in words, the verdict first."""
        return (
            self._verdict(),
            f"Trial {self.winner.number}, the best of {self.n_trials:,}, has a Sharpe ratio of {_number(self.sharpe)} "
            f"a year on {self.n_bars:,} bars of validation data, after costs.",
            *self._about_deflation(),
            self._about_overfitting(),
            self._about_length(),
            *self._about_correlation(),
        )

    def _verdict(self) -> str:
        if math.isnan(self.dsr):
            return "No evidence: the winner's returns do not allow a deflated Sharpe ratio."
        if self.evidence == "evidence":
            return "Evidence: the winner did better on validation data than luck explains, given all that was tried."
        if self.dsr < 0.5:
            return "No evidence: the winner did no better than the luckiest of so many trials without skill."
        return (
            "No evidence: the winner did better than the luckiest of so many trials without skill, but not by enough."
        )

    def _about_deflation(self) -> tuple[str, ...]:
        if math.isnan(self.dsr):
            return (f"Deflated Sharpe ratio: there is none; {NEEDS_TWO}.",)
        return (
            f"The luckiest of {self.n_trials:,} trials without any skill would be expected to reach "
            f"{_number(self.expected_maximum)}; the luckiest of all {self.n_checkpoints:,} checkpoints that were "
            f"scored, {_number(self.expected_maximum_of_checkpoints)}.",
            f"Deflated Sharpe ratio: {_number(self.dsr)}, the lower of {_number(self.dsr_of_trials)} for the best of "
            f"so many trials and {_number(self.dsr_of_checkpoints)} for the best of so many checkpoints. Evidence "
            f"begins at {LEVEL:g}; the luckiest of trials without skill has about 0.5.",
        )

    def _about_overfitting(self) -> str:
        if math.isnan(self.pbo):
            return "Probability of backtest overfitting: undefined; it needs two trials that differ, and 20 bars."
        means = (
            "which speaks against the choice: the trial that is best on some of the bars is mostly below average on "
            "the others. Either the trials are much alike, or it was luck."
            if self.pbo > 0.5
            else "the share of ways to halve the bars in which the best of one half is at most average in the other."
        )
        return f"Probability of backtest overfitting: {_number(self.pbo)}, {means}"

    def _about_length(self) -> str:
        if math.isnan(self.min_track_record):
            return "Minimum track record length: undefined."
        if math.isinf(self.min_track_record):
            return "Minimum track record length: none suffices, since the Sharpe ratio is not above 0."
        return (
            f"Minimum track record length: {math.ceil(self.min_track_record):,} bars would show such a Sharpe ratio to "
            f"be above 0 at {LEVEL:.0%}, had it been the only trial; there are {self.n_bars:,}."
        )

    def _about_correlation(self) -> tuple[str, ...]:
        if math.isnan(self.n_effective) or round(self.n_effective) >= self.n_trials:
            return ()
        return (
            f"The trials' returns are correlated: they are worth about {self.n_effective:,.0f} independent trials. The "
            f"figures above count all {self.n_trials:,}, which is stricter.",
        )


def judge(trials: Sequence[JudgedTrial], *, n_blocks: int = BLOCKS) -> Judgement | None:
    """The judgement of a study's finished trials; None where none has returns, or none is complete with a value.

    The variance of Sharpe ratios is that of the trials that have one; all count as tried. CSCV and the number of
    independent trials take the bars that all records share. n_blocks: of CSCV, at most.
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
    dsr = float(np.min(dsrs))  # NaN where one is
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
    """The complete trial of the highest value, of equal ones the earliest.

    None if no trial has a finite value, and if the best one never traded: `why_no_winner` says so.
    """
    best = _best(trials)
    return None if best is None or best.never_traded else best


def why_no_winner(trials: Sequence[JudgedTrial]) -> str | None:
    """A sentence if the best trial never traded; None if it did, or if no trial has a value."""
    best = _best(trials)
    if best is None or not best.never_traded:
        return None
    others = [each for each in trials if each.complete and not each.never_traded]
    told = "and every trial that traded did worse" if others else "and nor did any other trial"
    return (
        f"There is no winner: trial {best.number} has the highest value, {best.value:g}, but it never traded on the "
        f"validation data, {told}. Train for longer, or search other settings, features or costs."
    )


def _best(trials: Sequence[JudgedTrial]) -> JudgedTrial | None:
    with_value = [each for each in trials if each.complete and each.value is not None and math.isfinite(each.value)]
    return max(with_value, key=lambda each: (each.value, not each.never_traded, -each.number), default=None)


_UNDEFINED = Overfitting(math.nan, np.empty(0), 0)


def side_by_side(records: Mapping[int, ValidationReturns]) -> FloatArray:
    """The returns of all records (T, N) at the times that all of them have."""
    first, *others = records.values()
    if all(np.array_equal(each.time, first.time) for each in others):
        return np.column_stack([each.returns for each in records.values()])
    times = reduce(np.intersect1d, [each.time for each in records.values()])
    return np.column_stack([each.returns[np.searchsorted(each.time, times)] for each in records.values()])


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"


_FOLD = re.compile(r"-fold-\d+$")


def finished_trials(study: "Study", study_folder: Path) -> list[JudgedTrial]:
    """Complete and pruned trials by number, without those that never began: impossible and void ones.

    A trial that continues another one takes its place. Of several seeds, the returns are those of the run with the
    median Sharpe ratio (of two in the middle, the lower); of several folds, those of all, one after another.
    Raises UserError where a file of returns cannot be read.
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
    """The record that stands for a trial, and the folder of its run: of folds, that of the latest."""
    if len(records) > 1 and all(_FOLD.search(folder.name) for folder, _ in records):
        in_order = sorted(records, key=lambda each: each[1].time[:1].tolist())
        return in_order[-1][0], _one_after_another([record for _, record in in_order])
    by_sharpe = sorted(records, key=lambda each: _or_cash(each[1].sharpe))
    return by_sharpe[(len(by_sharpe) - 1) // 2]


def _or_cash(sharpe: float) -> float:
    """A run that never traded has no Sharpe ratio, and is worth as much as cash."""
    return 0.0 if math.isnan(sharpe) else sharpe


def _one_after_another(records: Sequence[ValidationReturns]) -> ValidationReturns:
    """The records joined; a time that two of them have is taken from the first."""
    times, rows = np.unique(np.concatenate([each.time for each in records]), return_index=True)
    returns = np.concatenate([each.returns for each in records])[rows]
    return ValidationReturns(times, returns, records[0].periods_per_year)
