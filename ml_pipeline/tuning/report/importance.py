"""Which settings mattered: the share of the values' variance that each one explains, by functional ANOVA.

Source: Hutter, Hoos and Leyton-Brown 2014, "An Efficient Approach for Assessing Hyperparameter Importance", ICML, as
Optuna computes it with a random forest.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import optuna

from ml_pipeline.tuning.report.setting_names import setting_name
from ml_pipeline.tuning.report.study_trials import TrialRow

FEWEST_TRIALS = 10
"""With fewer scored trials the forest says more about chance than about settings."""
_SEED = 0


class Importance(NamedTuple):
    """shares: of each setting, the largest first; they add up to 1. sentence: what they are of, or why not."""

    shares: Mapping[str, float]
    sentence: str


def importance_of_settings(study: optuna.Study, rows: Sequence[TrialRow]) -> Importance:
    """The same trials give the same shares."""
    # Loads scikit-learn and SciPy: 2 s of a processor and 116 MB, which a search needs at its end alone.
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    scored = [row for row in rows if row.state == "complete" and row.value is not None]
    if len(scored) < FEWEST_TRIALS:
        return Importance({}, f"Too few trials: {len(scored)} were scored, and importance needs {FEWEST_TRIALS}.")
    if len({row.value for row in scored}) == 1:
        return Importance({}, "All scored trials have the same value, so no setting made a difference.")
    shared = sorted(set.intersection(*(set(row.params) for row in scored)))
    varied = [name for name in shared if len({str(row.params[name]) for row in scored}) > 1]
    if not varied:
        return Importance({}, "No setting was searched in all scored trials with more than one value.")
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=_SEED), params=varied)
    shares = {name: share for name, share in found.items() if math.isfinite(share)}
    left = {name for row in scored for name in row.params} - {*varied}
    others = sorted(setting_name(name, rows) for name in left)
    left_out = f" Not compared, since some trials lack it or it never varied: {', '.join(others)}." if others else ""
    return Importance(
        shares,
        f"Share of the variance of the value over {len(scored)} scored trials that each setting explains by itself "
        f"(fANOVA). Pruned trials are not in it.{left_out}",
    )
