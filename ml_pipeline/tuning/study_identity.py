"""The definition of a study: its space, objective, task, data and settings. A process with another one cannot join.

Trials on other data or with another objective are not comparable, so a best one among them would mean nothing.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.tasks import Task, describe_task
from ml_pipeline.runs.train_config import TrainConfig, train_config
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.study_files import FEATURE_WARNINGS, IDENTITY_ATTRIBUTE

if TYPE_CHECKING:
    import optuna

_MAY_DIFFER = frozenset(
    {
        *("device", "n_workers", "parallel_start_method", "step_timeout_s", "on_worker_failure", "checkpoint_dir"),
        *("checkpoint_interval", "tensorboard", "tensorboard_dir", "wandb", "sink", "data"),
        *OF_LAUNCH,
    }
)
"""Settings that may differ between machines: those that change no result, and paths. Data are compared by their
fingerprint."""
_VERSION = "package version"
_MOST_DIFFERENCES = 6
_MOST_CHARACTERS = 120


class _Missing(str):
    """The text shown in place of a missing value."""

    __slots__ = ()


_ABSENT, _DEFAULT = _Missing("absent"), _Missing("its default")


def study_identity(
    *, space: Mapping[str, Any], objective: Mapping[str, Any], task: Task, base: Mapping[str, Any], version: str
) -> dict[str, Any]:
    """The study's definition as JSON. space: `Space.described()`. task: made from the settings. base: the flat settings
    that trials share; those at their defaults are left out, so that a later version may add settings.
    version: of this program.

    Raises UserError if a base setting is out of range.
    """
    defaults = _flat(train_config({name: base[name] for name in ("algorithm",) if name in base}))
    effective = _flat(train_config(base))
    shared = {name: value for name, value in effective.items() if name not in _MAY_DIFFER and value != defaults[name]}
    return {
        "space": _plain(space),
        "objective": _plain(objective),
        "task": _plain(describe_task(task)),
        "base settings": _plain(shared),
        FEATURE_WARNINGS: _warnings_unless_refused(task),
        _VERSION: version,
    }


def warnings_of_task(task: Task) -> tuple[str, ...]:
    """Sentences about features that may use later bars, including those that the user accepted.

    Raises UserError if a feature does use them.
    """
    if not isinstance(task, TradingTask):
        return ()
    return tuple(each.sentence for each in task.feature_warnings if each.kind in {"later bars", "files"})


def _warnings_unless_refused(task: Task) -> list[str]:
    try:
        return list(warnings_of_task(task))
    except UserError:  # each run reports it, and a space may give its trials other features
        return []


def join_study(study: "optuna.Study", identity: Mapping[str, Any]) -> list[str]:
    """Check that a study has this identity; a new study is given it. Returns sentences for the user.

    Raises UserError, with the differences, if the study has another one.
    """
    stored = study.user_attrs.get(IDENTITY_ATTRIBUTE)
    if stored is None:
        study.set_user_attr(IDENTITY_ATTRIBUTE, dict(identity))
        stored = study.user_attrs[IDENTITY_ATTRIBUTE]  # another process may have written its own first
    warnings = dict.fromkeys([*stored.get(FEATURE_WARNINGS, []), *identity.get(FEATURE_WARNINGS, [])])
    found = differences(stored, identity)
    if found:
        more = f"; and {len(found) - _MOST_DIFFERENCES} more" if len(found) > _MOST_DIFFERENCES else ""
        raise UserError(
            f"The study {study.study_name} was started differently: {'; '.join(found[:_MOST_DIFFERENCES])}{more}. Use "
            "the same again, or choose another --study-name."
        )
    if len(warnings) > len(stored.get(FEATURE_WARNINGS, [])):  # from a check that an earlier version lacked
        study.set_user_attr(IDENTITY_ATTRIBUTE, {**stored, FEATURE_WARNINGS: list(warnings)})
    there, here = stored.get(_VERSION), identity.get(_VERSION)
    if there == here:
        return []
    return [
        f"The study {study.study_name} was started with version {there} of this program, and this is {here}: if the "
        "versions train differently, its trials are not quite comparable."
    ]


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The differences between two identities, each as `name: value there, value here`.

    The version is not compared, nor are warnings about features, which follow from the data and the version.

    >>> differences({"space": {"gamma": {"log": [1e-5, 0.01]}}}, {"space": {"gamma": {"log": [1e-4, 0.01]}}})
    ['gamma: log 1e-05..0.01 there, log 0.0001..0.01 here']
    """
    found: list[str] = []
    for part in dict.fromkeys([*there, *here]):
        if part not in {_VERSION, FEATURE_WARNINGS}:
            missing = _DEFAULT if part == "base settings" else _ABSENT
            found.extend(_differences(part, there.get(part, {}), here.get(part, {}), missing, top=True))
    return found


def _flat(config: TrainConfig) -> dict[str, Any]:
    return {**vars(config.run), **vars(config.ppo), **vars(config.trading)}


def _plain(values: Any) -> Any:
    """The values after a round trip through JSON: tuples become lists, keys and unknown types become strings."""
    return json.loads(json.dumps(values, default=str))


def _differences(name: str, there: Any, here: Any, missing: _Missing, *, top: bool = False) -> Iterator[str]:
    if there == here:
        return
    both_are_groups = all(isinstance(each, Mapping) and (top or not _is_range(each)) for each in (there, here))
    if both_are_groups:
        for key in dict.fromkeys([*there, *here]):
            inner = key if top else f"{name} {key}"
            yield from _differences(inner, there.get(key, missing), here.get(key, missing), missing)
        return
    yield f"{name}: {_shown(there)} there, {_shown(here)} here"


def _is_range(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is the distribution of one setting, such as {"int": [1, 20], "log": True}."""
    return isinstance(next(iter(values.values()), None), list)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and _is_range(value):
        return " ".join(_shown_part(name, part) for name, part in value.items())
    return in_one_line(value if isinstance(value, str) else json.dumps(value), _MOST_CHARACTERS)


def _shown_part(name: str, part: Any) -> str:
    """A part of a range for a sentence.

    >>> _shown_part("int", [1, 20]), _shown_part("log", True), _shown_part("choice", ["tanh", "relu", "elu"])
    ('int 1..20', 'log', 'choice tanh, relu, elu')
    """
    if part is True:
        return name
    if not isinstance(part, list):
        return f"{name} {part}"
    if name != "choice" and len(part) == 2:
        return f"{name} {part[0]}..{part[1]}"
    return f"{name} {', '.join(map(str, part))}"
