"""The statistics of selection as rows of a table: name, value, and what it says."""

import math

from ml_pipeline.tuning.judgement import LEVEL, Judgement


def statistics_rows(judgement: Judgement) -> list[tuple[str, str, str]]:
    """What is undefined says so."""
    return [
        ("trials (N)", f"{judgement.n_trials:,}", "finished ones, pruned ones included: each was a try"),
        ("checkpoints that were scored", f"{judgement.n_checkpoints:,}", "each trial is the best of its own"),
        (
            "independent trials",
            _number(judgement.n_effective, ".0f"),
            "about as many as their correlated returns are worth",
        ),
        ("bars of validation data", f"{judgement.n_bars:,}", "of the winner's record"),
        ("Sharpe ratio of the winner", _number(judgement.sharpe), "annualized, on validation data, after costs"),
        (
            "SR0, counting trials",
            _number(judgement.expected_maximum),
            "expected of the luckiest of N trials without skill that spread as these do",
        ),
        (
            "SR0, counting checkpoints",
            _number(judgement.expected_maximum_of_checkpoints),
            "the same of all checkpoints, had they been independent",
        ),
        (
            "deflated Sharpe ratio, counting trials",
            _number(judgement.dsr_of_trials, ".4f"),
            f"probability that the true Sharpe ratio is above SR0; evidence begins at {LEVEL:g}",
        ),
        (
            "deflated Sharpe ratio, counting checkpoints",
            _number(judgement.dsr_of_checkpoints, ".4f"),
            "the same against the other; the lower of the two is the verdict's",
        ),
        (
            "probability of backtest overfitting (PBO)",
            _number(judgement.pbo, ".4f"),
            f"by CSCV over {judgement.pbo_blocks} blocks of bars; above 0.5 the choice is worse than none",
        ),
        (
            "minimum track record length",
            _bars(judgement.min_track_record),
            "bars until such a Sharpe ratio is above 0 at 95 %, had it been the only trial",
        ),
    ]


def _number(value: float, form: str = ".2f") -> str:
    return "undefined" if not math.isfinite(value) else f"{value:,{form}}"


def _bars(bars: float) -> str:
    if math.isnan(bars):
        return "undefined"
    return "none suffices" if math.isinf(bars) else f"{math.ceil(bars):,} bars"
