"""The report of a study: its settings, its winner, whether the result is more than luck, and every look at the test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, score_unit
from ml_pipeline.trading.evaluation.looks import looks_in_words
from ml_pipeline.tuning.report.page import StudyPage, write_study_page
from ml_pipeline.tuning.report.study_trials import TrialRow, importance_of_settings, n_finished, trial_rows
from ml_pipeline.tuning.report.test_opening import looks_at_test
from ml_pipeline.tuning.report.winner_test import Candidate, OpenTest, WinnerTest, see_test
from ml_pipeline.tuning.study_files import (
    N_TRIALS_ATTRIBUTE,
    REPORT_FILE,
    feature_warnings,
    identity_of,
    warnings_in_words,
)
from ml_pipeline.tuning.winner_statistics import (
    LEVEL,
    Judgement,
    finished_trials,
    judge,
    why_no_winner,
    winner_of,
)


@dataclass(frozen=True)
class StudyReport:
    """The page's path and its main sentences. test: the test's result, and who opened it."""

    path: Path
    sentences: tuple[str, ...]
    test: WinnerTest


def write_study_report(
    study: optuna.Study, study_folder: Path, *, n_trials: int | None, open_test: OpenTest = "once"
) -> StudyReport:
    """Write report.html into the study's folder, and open the test for the winner if that is allowed.

    n_trials: the planned number of finished trials; None: unknown, and the test stays closed.
    open_test: see `see_test`. Raises UserError if the page or the record of the test cannot be written.
    """
    rows = trial_rows(study)
    judged = finished_trials(study, study_folder)
    judgement = judge(judged)
    best = winner_of(judged)
    winner = None if best is None else next((row for row in rows if row.number == best.number), None)
    candidate = None
    if best is not None:
        unfinished = _unfinished(rows, n_trials)
        candidate = Candidate(number=best.number, folder=best.folder, is_final=not unfinished, unfinished=unfinished)
    test = see_test(study, study_folder, candidate, open_test)
    if looks := looks_at_test(study, study_folder, test.openings):
        test = replace(test, sentences=(*test.sentences, looks_in_words(looks)))
    warnings = feature_warnings(study)
    unit = _value_unit(identity_of(study))
    verdict = (
        *warnings_in_words(warnings),
        *_verdict(rows, winner, judgement, test, unit=unit, no_winner=why_no_winner(judged)),
    )
    path = study_folder / REPORT_FILE
    page = StudyPage(
        name=study.study_name,
        folder=study_folder,
        rows=rows,
        n_trials=n_trials,
        winner=winner,
        winner_folder=_name_in(study_folder, best.folder if best else None),
        verdict=verdict,
        evidence=None if judgement is None else judgement.evidence == "evidence" and not warnings,
        statistics=[] if judgement is None else statistics_rows(judgement),
        test=test,
        importance=importance_of_settings(study, rows),
        logits=None if judgement is None else judgement.logits,
        identity=identity_of(study),
        value_unit=unit,
    )
    try:
        write_study_page(path, page)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; make room, or fix its permissions.") from error
    return StudyReport(path, (*verdict, *test.sentences), test)


def trials_asked_for(study: optuna.Study) -> int | None:
    """The number of finished trials that `tune` was last given; None if `tune` did not create the study."""
    told = study.user_attrs.get(N_TRIALS_ATTRIBUTE)
    return told if isinstance(told, int) and told > 0 else None


def _unfinished(rows: list[TrialRow], n_trials: int | None) -> str:
    """Why the winner may still change; "" if it cannot."""
    finished = n_finished(rows)
    if n_trials is None:
        return "The test stays closed, because the planned number of trials is unknown; give it with --n-trials."
    if finished >= n_trials:
        return ""
    return (
        f"The test is closed: {finished:,} of {counted(n_trials, 'trial')} have finished, so the winner may change. "
        "It is opened once, when all trials have finished."
    )


def _verdict(
    rows: list[TrialRow],
    winner: TrialRow | None,
    judgement: Judgement | None,
    test: WinnerTest,
    *,
    unit: str | None,
    no_winner: str | None,
) -> tuple[str, ...]:
    if not rows:
        return ("No trial has begun.",)
    if winner is None:
        return (no_winner or _without_winner(rows),)
    if judgement is not None:
        return judgement.sentences()
    finished = counted(n_finished(rows), "finished trial")
    value = f"{winner.value:,.6g}" + (f" ({unit})" if unit else "")
    first = f"Trial {winner.number} has the highest value, {value}, of {finished}."
    score = _held_out_score(test, winner)
    return (
        first,
        *([score] if score else []),
        "The trials have no market returns, so the effect of selection is unknown: the winner's value is the highest "
        "of many, and therefore too high by an unknown amount.",
    )


def _without_winner(rows: list[TrialRow]) -> str:
    kinds = ("complete", "failed", "pruned", "impossible", "running")
    states = {state: sum(row.state == state for row in rows) for state in kinds}
    told = ", ".join(f"{n:,} {state}" for state, n in states.items() if n)
    reasons = {row.reason for row in rows if row.state == "failed"}
    same = f" All failed for one reason: {reasons.pop()}" if len(reasons) == 1 and states["failed"] == len(rows) else ""
    what = f"of {counted(len(rows), 'trial')}, {told}" if told else "none has begun"
    lacking = "a finite score" if states["complete"] else "completed"
    return f"No trial has {lacking}, so there is no winner: {what}.{same}"


def _held_out_score(test: WinnerTest, winner: TrialRow) -> str:
    opening = test.of_winner
    if opening is None or opening.result is None or "mean_return" not in opening.result:
        return ""
    result = opening.result
    return (
        f"In {result['episodes']:,} fresh episodes, which no trial was scored on, it returns "
        f"{result['mean_return']:,.6g} ± {result['mean_return_se']:,.3g} (standard error)."
    )


def _value_unit(identity: Mapping[str, Any]) -> str | None:
    """The unit of a trial's value; None if the study does not record it."""
    objective, base = identity.get("objective"), identity.get("base settings")
    if not isinstance(objective, Mapping) or not isinstance(base, Mapping):
        return None
    score = "sharpe" if objective.get("objective") == "sharpe" else base.get("score", "log_return")
    return score_unit(base.get("env_id"), score)


def _name_in(study_folder: Path, folder: Path | None) -> str | None:
    if folder is None:
        return None
    return folder.relative_to(study_folder).as_posix() if folder.is_relative_to(study_folder) else folder.name


def statistics_rows(judgement: Judgement) -> list[tuple[str, str, str]]:
    """Rows of (name, value, meaning); undefined figures are shown as such."""
    return [
        ("trials (N)", f"{judgement.n_trials:,}", "finished trials, including pruned ones: each was an attempt"),
        ("checkpoints that were scored", f"{judgement.n_checkpoints:,}", "each trial is the best of its checkpoints"),
        (
            "independent trials",
            _number(judgement.n_effective, ".0f"),
            "what the N trials are worth, given the correlation of their returns",
        ),
        ("bars of validation data", f"{judgement.n_bars:,}", "in the winner's record"),
        ("Sharpe ratio of the winner", _number(judgement.sharpe), "annualized, on validation data, after costs"),
        (
            "SR0, counting trials",
            _number(judgement.expected_maximum),
            "expected from the luckiest of N trials without skill, with the same spread",
        ),
        (
            "SR0, counting checkpoints",
            _number(judgement.expected_maximum_of_checkpoints),
            "the same for all checkpoints, if they were independent",
        ),
        (
            "deflated Sharpe ratio, counting trials",
            _number(judgement.dsr_of_trials, ".4f"),
            f"probability that the true Sharpe ratio is above SR0; at least {LEVEL:g} is evidence",
        ),
        (
            "deflated Sharpe ratio, counting checkpoints",
            _number(judgement.dsr_of_checkpoints, ".4f"),
            "the same with the other SR0; the verdict uses the lower of the two",
        ),
        (
            "probability of backtest overfitting (PBO)",
            _number(judgement.pbo, ".4f"),
            f"by CSCV over {judgement.pbo_blocks} blocks of bars; above 0.5, choosing the best is worse than chance",
        ),
        (
            "minimum track record length",
            _bars(judgement.min_track_record),
            "bars that would show this Sharpe ratio above 0 at 95 %, if it were the only trial",
        ),
    ]


def _number(value: float, form: str = ".2f") -> str:
    return "undefined" if not math.isfinite(value) else f"{value:,{form}}"


def _bars(bars: float) -> str:
    if math.isnan(bars):
        return "undefined"
    return "no length suffices" if math.isinf(bars) else f"{math.ceil(bars):,} bars"
