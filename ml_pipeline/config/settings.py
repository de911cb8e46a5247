"""A settings class: a frozen dataclass whose fields are groups, themselves frozen dataclasses of single settings.

Names of settings are unique over all groups, so that flags and files are flat: `PPOConfig.n_steps` is `--n-steps` as a
flag and `n_steps` in a file. Groups check their own ranges in `__post_init__`; the settings class checks conditions
across groups. A `Scheduled` setting may change during training: it is a number, a string such as lin_3e-4, or in Python
a function. A `Network` is a function, by name or in Python itself.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.familiar_names import meant_setting

Scheduled = float | str | Callable[[float], float]
"""A number; a string such as "lin_3e-4", which falls linearly from 3e-4 to 0; or a function of the share of training
that is left."""
SCHEDULED = ("learning_rate", "clip_range", "ent_coef")
Network = str | Callable[..., Any] | None
"""A function from an observation space to a torch module, or its name, "module:function"."""
NETWORK = "network"
IN_TEXT: Mapping[str, Any] = {**dict.fromkeys(SCHEDULED, float), NETWORK: str | None}
"""The types of settings that may be functions, in flags and files, which hold no functions."""
_LINEAR, _FUNCTION = "lin_", "function "


@dataclass(frozen=True)
class LostFunction:
    """Placeholder for the function of a setting if only its name is known."""

    setting: str
    name: str

    def __str__(self) -> str:
        return f"{_FUNCTION}{self.name}"

    def __call__(self, *_: Any, **__: Any) -> Any:
        remedy = "or give a number"
        if self.setting == NETWORK:
            remedy = "load_policy(..., network=...), or move it into a module that they can import"
        raise UserError(
            f"{self.setting} was the Python function {self.name}, of which files, checkpoints and other processes hold "
            f"only the name; pass it again, PPOConfig({self.setting}=...), {remedy}."
        )


def spelled_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, with lin_3e-4 split into 3e-4 and its schedule, and function names as `LostFunction`.

    Raises UserError if another schedule is given too.

    >>> spelled_out({"learning_rate": "lin_3e-4", "gamma": 0.9})
    {'learning_rate': 0.0003, 'gamma': 0.9, 'learning_rate_schedule': 'linear'}
    """
    settings = dict(values)
    for name in IN_TEXT:
        value, schedule = settings.get(name), f"{name}_schedule"
        if not isinstance(value, str):
            continue
        if value.startswith(_FUNCTION):
            settings[name] = LostFunction(name, value.removeprefix(_FUNCTION))
        elif name in SCHEDULED and (start := _start_of_line(value)) is not None:
            if (other := settings.get(schedule, "linear")) not in ("constant", "linear"):
                raise UserError(f"{name} is {value}, which is linear, but {schedule} is {other}; use one of them.")
            settings.update({name: start, schedule: "linear"})
    return settings


def function_shown(function: Callable[..., Any]) -> str:
    """The text that files and checkpoints hold for a function.

    >>> function_shown(lambda left: 3e-4 * left)
    'function <lambda>'
    """
    if isinstance(function, LostFunction):
        return str(function)
    return f"{_FUNCTION}{getattr(function, '__name__', type(function).__name__)}"


def by_name(function: Callable[..., Any]) -> str | Callable[..., Any]:
    """The name "module:function" if other processes can import the function by it; else the function itself.

    >>> by_name(function_shown)
    'ml_pipeline.config.settings:function_shown'
    """
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    is_there = module != "__main__" and name and getattr(sys.modules.get(module), name, None) is function
    return f"{module}:{name}" if is_there else function


def same_function(one: Network, other: Network) -> bool:
    """Whether two networks have functions of the same name, which may have moved to another module.

    >>> same_function("nets:small", "my.nets:small"), same_function("nets:small", None)
    (True, False)
    """
    shown = (function_shown(each) if callable(each) else each for each in (one, other))
    return len({each and each.removeprefix(_FUNCTION).rpartition(":")[2] for each in shown}) == 1


def _start_of_line(value: str) -> float | None:
    """The number after lin_; None for any other text."""
    prefix, number = value[: len(_LINEAR)], value[len(_LINEAR) :]
    try:
        return float(number) if prefix == _LINEAR else None
    except ValueError:
        return None


Settings = TypeVar("Settings")


def groups_of(settings_class: type) -> dict[str, type]:
    """The groups of a settings class, by field name, in order."""
    hints = get_type_hints(settings_class)
    return {field.name: hints[field.name] for field in fields(settings_class)}


def hints_of(settings_class: type) -> dict[str, Any]:
    """The type of every setting in flags and files, flat and in order."""
    hints: dict[str, Any] = {}
    for group in groups_of(settings_class).values():
        group_hints = get_type_hints(group)
        for field in fields(group):
            assert field.name not in hints, f"{field.name} is a setting of two groups"
            hint = group_hints[field.name]
            hints[field.name] = IN_TEXT.get(field.name, hint)
    return hints


def build(settings_class: type[Settings], values: Mapping[str, object]) -> Settings:
    """Settings with these values, and defaults for the rest.

    Raises UserError for an unknown name or a value out of range.
    """
    groups = groups_of(settings_class)
    known = {field.name: name for name, group in groups.items() for field in fields(group)}
    given: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for name, value in values.items():
        if name not in known:
            raise UserError(f'unknown setting "{name}". {meant_setting(name, known)}')
        given[known[name]][name] = value
    return settings_class(**{name: group(**given[name]) for name, group in groups.items()})


def flatten(settings: object) -> dict[str, object]:
    """Every setting by name, in types of YAML and JSON: numbers, strings, booleans, lists and None."""
    flat = {}
    for name in groups_of(type(settings)):
        group = getattr(settings, name)
        flat.update({field.name: _plain(getattr(group, field.name)) for field in fields(group)})
    return flat


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if callable(value):
        return function_shown(value)
    return str(value) if isinstance(value, Path) else value
