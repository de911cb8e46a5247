"""The results of a study's trials as plain data: one row per trial, and the importance of each setting.

Settings have the names of `train`, even if Optuna drew them on another scale. The importance of a setting is the share
of the values' variance that it explains, by functional ANOVA. Source: Hutter, Hoos and Leyton-Brown 2014, "An Efficient
Approach for Assessing Hyperparameter Importance", ICML, as Optuna computes it with a random forest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.config.json_object import count, finite
from ml_pipeline.tuning.study_files import TrialKind, kind_of


@dataclass(frozen=True, eq=False)
class TrialRow:
    """One trial of a study.

    value: its score, or the last reported one if it was pruned; None without one. reason: why it ended early.
    params: the sampler's choices, with their distributions. settings: the flat settings that follow from them.
    """

    number: int
    state: TrialKind
    value: float | None
    began: datetime | None
    ended: datetime | None
    params: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    settings: Mapping[str, Any]
    folders: tuple[str, ...]
    reason: str
    host: str
    global_step: int | None
    validation_sharpe: float | None
    retry_of: int | None
    """The trial that this one repeats from its checkpoint, because its process was lost or stopped."""
    continues: int | None
    """The trial that this one trained further."""


def trial_rows(study: optuna.Study) -> list[TrialRow]:
    """The study's trials by number, without those that lost a race for the last place.

    A stopped trial is shown as stopped; the later trial that continues it has its own row.
    """
    trials = sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number)
    return [_row(trial) for trial in trials if kind_of(trial) != "void"]


def n_finished(rows: Sequence[TrialRow]) -> int:
    """As `study_files.n_finished`."""
    return sum(row.state in {"complete", "pruned"} and row.continues is None for row in rows)


def _row(trial: FrozenTrial) -> TrialRow:
    attributes = trial.user_attrs
    return TrialRow(
        number=trial.number,
        state=kind_of(trial),
        value=_value(trial),
        began=trial.datetime_start,
        ended=trial.datetime_complete,
        params=trial.params,
        distributions=trial.distributions,
        settings=_mapping(attributes.get("settings")) or trial.params,
        folders=_words(attributes.get("folders")),
        reason=_sentence(attributes.get("reason")),
        host=_sentence(attributes.get("host")),
        global_step=count(attributes.get("global_step")),
        validation_sharpe=finite(attributes.get("validation_sharpe")),
        retry_of=count(attributes.get("failed_trial")),
        continues=count(attributes.get("continues")),
    )


def _value(trial: FrozenTrial) -> float | None:
    if trial.state == TrialState.COMPLETE:
        return finite(trial.value)
    steps = trial.intermediate_values
    return finite(steps[max(steps)]) if steps else None


# Other programs can write the attributes in a storage: values of an unexpected type are left out.
def _mapping(value: object) -> Mapping[str, Any]:
    return {str(name): each for name, each in value.items()} if isinstance(value, dict) else {}


def _words(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _sentence(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""


_LOG2 = "log2_"
_ONE_MINUS = "one_minus_"


class ShownSetting(NamedTuple):
    """How to show a parameter of Optuna's. axis: its name in a chart. values: of the setting, None if not drawn.

    on_axis: the values that a chart draws, if they differ.
    """

    name: str
    axis: str
    values: Sequence[float | None]
    on_axis: Sequence[float | None]


def shown_setting(parameter: str, rows: Sequence[TrialRow]) -> ShownSetting | None:
    """How to show a parameter that Optuna draws on another scale; None for any other parameter.

    log2_n_steps 7 is n_steps 128; one_minus_gamma 0.01 is gamma 0.99, drawn as 1 - gamma, the scale of its search.
    """
    for prefix in (_LOG2, _ONE_MINUS):
        name = parameter.removeprefix(prefix)
        if name != parameter and any(name in row.settings for row in rows):
            drawn = [row.params.get(parameter) for row in rows]
            if prefix == _LOG2:
                values = [None if exponent is None else 2.0**exponent for exponent in drawn]
                return ShownSetting(name, name, values, values)
            values = [None if rest is None else 1.0 - rest for rest in drawn]
            return ShownSetting(name, f"1 - {name}", values, drawn)
    return None


def setting_name(parameter: str, rows: Sequence[TrialRow]) -> str:
    """The setting that a parameter of Optuna's decides."""
    shown = shown_setting(parameter, rows)
    return parameter if shown is None else shown.name


FEWEST_TRIALS = 10
"""With fewer scored trials, the forest's result is mostly noise."""
_SEED = 0


class Importance(NamedTuple):
    """shares: of each setting, the largest first; they add up to 1. sentence: explains them, or why there are none."""

    shares: Mapping[str, float]
    sentence: str


def importance_of_settings(study: optuna.Study, rows: Sequence[TrialRow]) -> Importance:
    """The share of each setting; deterministic for the same trials."""
    # Loads scikit-learn and SciPy (2 s of CPU time and 116 MB), which a study needs only at its end.
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
    left_out = f" Not compared, as some trials lack them or they never varied: {', '.join(others)}." if others else ""
    return Importance(
        shares,
        f"Share of the variance of the value over {len(scored)} scored trials that each setting explains by itself "
        f"(fANOVA). Pruned trials are not included.{left_out}",
    )
