"""Settings that may change during training: a number, the spelling lin_3e-4, or in Python a function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_pipeline.config.errors import UserError

Scheduled = float | str | Callable[[float], float]
"""A number; a text such as "lin_3e-4", that number on a line to zero; or a function of the share of training left."""
SCHEDULED = ("learning_rate", "clip_range", "ent_coef")
_LINEAR, _FUNCTION = "lin_", "function "


@dataclass(frozen=True)
class LostFunction:
    """Stands for the function of a setting where its name alone is known."""

    setting: str
    name: str

    def __str__(self) -> str:
        return f"{_FUNCTION}{self.name}"

    def __call__(self, left: float) -> float:
        raise UserError(
            f"{self.setting} was the Python function {self.name}, of which files, checkpoints and other processes hold "
            f"the name alone; hand it again, PPOConfig({self.setting}=...), or give a number."
        )


def spelled_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, where lin_3e-4 is 3e-4 and a schedule, and where the name of a function is a `LostFunction`.

    Raises UserError where the schedule is given and another.

    >>> spelled_out({"learning_rate": "lin_3e-4", "gamma": 0.9})
    {'learning_rate': 0.0003, 'gamma': 0.9, 'learning_rate_schedule': 'linear'}
    """
    settings = dict(values)
    for name in SCHEDULED:
        value, schedule = settings.get(name), f"{name}_schedule"
        if not isinstance(value, str):
            continue
        if value.startswith(_FUNCTION):
            settings[name] = LostFunction(name, value.removeprefix(_FUNCTION))
        elif (start := _start_of_line(value)) is not None:
            if (other := settings.get(schedule, "linear")) not in ("constant", "linear"):
                raise UserError(
                    f"{name} is {value}, which is linear, but {schedule} is {other}; leave one of them out."
                )
            settings.update({name: start, schedule: "linear"})
    return settings


def function_shown(function: Callable[[float], float]) -> str:
    """What files and checkpoints hold of a function.

    >>> function_shown(lambda left: 3e-4 * left)
    'function <lambda>'
    """
    if isinstance(function, LostFunction):
        return str(function)
    return f"{_FUNCTION}{getattr(function, '__name__', type(function).__name__)}"


def _start_of_line(value: str) -> float | None:
    """The number after lin_; None for any other text."""
    prefix, number = value[: len(_LINEAR)], value[len(_LINEAR) :]
    try:
        return float(number) if prefix == _LINEAR else None
    except ValueError:
        return None
