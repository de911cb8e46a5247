"""The settings of a study under the names of `train`, where Optuna drew them on another scale."""

from collections.abc import Sequence
from typing import NamedTuple

from ml_pipeline.tuning.report.study_trials import TrialRow

_LOG2 = "log2_"
_ONE_MINUS = "one_minus_"


class ShownSetting(NamedTuple):
    """How a parameter of Optuna's is shown. axis: its name in a chart. values: of the setting, None where not drawn.

    on_axis: what a chart draws in place of the values, where it differs.
    """

    name: str
    axis: str
    values: Sequence[float | None]
    on_axis: Sequence[float | None]


def shown_setting(parameter: str, rows: Sequence[TrialRow]) -> ShownSetting | None:
    """How a parameter on a scale of its own is shown; None for any other one.

    log2_n_steps 7 is n_steps 128; one_minus_gamma 0.01 is gamma 0.99, drawn as 1 - gamma, since it is searched by it.
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
