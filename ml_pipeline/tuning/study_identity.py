"""What makes a study the same study: its space, objective, task, data and settings. Joining with others is refused.

Trials of other data or another objective are not comparable: the best of them would be the best of nothing.
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
"""Settings that change no result, or where things lie: they may differ between machines. Data are compared by their
fingerprint."""
_VERSION = "package version"
_MOST_DIFFERENCES = 6
_MOST_CHARACTERS = 120


class _Missing(str):
    """What is said in place of a value that is not there."""

    __slots__ = ()


_ABSENT, _DEFAULT = _Missing("absent"), _Missing("its default")


def study_identity(
    *, space: Mapping[str, Any], objective: Mapping[str, Any], task: Task, base: Mapping[str, Any], version: str
) -> dict[str, Any]:
    """What a study is, as JSON. space: `Space.described()`. task: as made from the settings. base: the flat settings
    that trials share; those at their defaults do not count, so that a later version may have more of them.
    version: of this program.

    Raises UserError where a base setting is out of range.
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
    """Sentences about features that may hold later bars, also of those that the user accepted.

    Raises UserError about a feature that does.
    """
    if not isinstance(task, TradingTask):
        return ()
    return tuple(each.sentence for each in task.feature_warnings if each.kind in {"later bars", "files"})


def _warnings_unless_refused(task: Task) -> list[str]:
    try:
        return list(warnings_of_task(task))
    except UserError:  # which each run says by itself; and a space may give its trials other features
        return []


def join_study(study: "optuna.Study", identity: Mapping[str, Any]) -> list[str]:
    """Make sure that a study is this one; a new study becomes it. Returns sentences for the user.

    Raises UserError, which says what differs, where it is another one.
    """
    stored = study.user_attrs.get(IDENTITY_ATTRIBUTE)
    if stored is None:
        study.set_user_attr(IDENTITY_ATTRIBUTE, dict(identity))
        stored = study.user_attrs[IDENTITY_ATTRIBUTE]  # another process may have been quicker, with another one
    warnings = dict.fromkeys([*stored.get(FEATURE_WARNINGS, []), *identity.get(FEATURE_WARNINGS, [])])
    found = differences(stored, identity)
    if found:
        more = f"; and {len(found) - _MOST_DIFFERENCES} more" if len(found) > _MOST_DIFFERENCES else ""
        raise UserError(
            f"The study {study.study_name} is another one: {'; '.join(found[:_MOST_DIFFERENCES])}{more}. Give what it "
            "was begun with, or choose another --study-name."
        )
    if len(warnings) > len(stored.get(FEATURE_WARNINGS, [])):  # of a test that an earlier version did not have
        study.set_user_attr(IDENTITY_ATTRIBUTE, {**stored, FEATURE_WARNINGS: list(warnings)})
    there, here = stored.get(_VERSION), identity.get(_VERSION)
    if there == here:
        return []
    return [
        f"The study {study.study_name} was begun with version {there} of this program, and this is {here}: where the "
        "versions train differently, its trials are not quite comparable."
    ]


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What differs between two identities, each as `name: value there, value here`.

    The version does not count, nor do warnings about features, which follow from the data and the version.

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
    """As JSON gives it back: tuples are lists, keys are texts, and what JSON does not know is its text."""
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
    """Whether a mapping says how one setting is searched, such as {"int": [1, 20], "log": True}."""
    return isinstance(next(iter(values.values()), None), list)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and _is_range(value):
        return " ".join(_shown_part(name, part) for name, part in value.items())
    return in_one_line(value if isinstance(value, str) else json.dumps(value), _MOST_CHARACTERS)


def _shown_part(name: str, part: Any) -> str:
    """Of a range, as a sentence has it.

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
