"""Converts the value of a flag or a file to the type of the setting, or explains in one sentence why it cannot."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from ml_pipeline.config.checks import is_plain
from ml_pipeline.config.env_schedule import pairs_in
from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.wording import in_one_line

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    bool: "true or false",
    dict: "a JSON object",
    NoneType: "none",
}

# Several pairs in one word: time=Date,close=Last.
_SEVERAL_PAIRS = re.compile(r"\w+=[^,=]+(,\w+=[^,=]+)+")


def convert(value: object, hint: Any, *, name: str) -> Any:
    """Convert `value` to the type `hint`. Strings become numbers if needed; "none" becomes None or an empty list.

    Raises UserError; its sentence begins with `name`.

    >>> convert("3e-4", float, name="learning_rate")
    0.0003
    >>> convert("1e6", int, name="total_timesteps")
    1000000
    >>> convert(["64", 32], tuple[int, ...], name="hidden_sizes")
    (64, 32)
    >>> convert('{"size": 8}', dict[str, Any], name="env_kwargs")
    {'size': 8}
    >>> convert("[64,64]", tuple[int, ...], name="hidden_sizes")
    (64, 64)
    >>> convert("dqn", Literal["PPO", "DQN"], name="algorithm")
    'DQN'
    >>> convert("many", int | Literal["auto"], name="n_workers")
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: n_workers must be a whole number or auto, but got "many".
    """
    if is_schedule(hint):
        return _schedule(value, name)
    if is_pairs(hint):
        return _pairs(value, name)
    if is_mapping(hint):
        return _mapping(value, name)
    if NoneType in alternatives(hint) and value in (None, "none", ["none"]):
        return None
    if is_list(hint) and value in ("none", ["none"]):
        return ()
    value = _as_choice(value, hint)
    candidate = [value] if is_list(hint) and not isinstance(value, list) else value
    if bool not in alternatives(hint) and any(isinstance(element, bool) for element in _elements(candidate)):
        raise _rejected(value, hint, name)  # pydantic would read true as 1
    for reading in (candidate, _with_numbers_read(candidate), _with_numbers_read(_without_commas(candidate))):
        try:
            return _adapter(hint).validate_python(reading)
        except ValidationError:
            continue
    raise _rejected(value, hint, name)


def _as_choice(value: object, hint: Any) -> object:
    """Match a string to a choice without regard to case: dqn is DQN."""
    if not isinstance(value, str):
        return value
    return next((word for word in choices_of(hint) if word.lower() == value.lower()), value)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_list(hint: Any) -> bool:
    """Whether a setting takes several values."""
    return (
        is_schedule(hint)
        or is_pairs(hint)
        or any(get_origin(alternative) is tuple for alternative in alternatives(hint))
    )


def is_mapping(hint: Any) -> bool:
    """Whether a setting takes named values: a mapping in a file, and a JSON object as a flag."""
    return get_origin(hint) is dict and not is_schedule(hint) and not is_pairs(hint)


def is_pairs(hint: Any) -> bool:
    """Whether a setting takes named strings: a mapping in a file, and words NAME=TEXT as a flag."""
    return bool(hint == dict[str, str])


def is_schedule(hint: Any) -> bool:
    """Whether a setting takes numbers by global step: a mapping in a file, and pairs STEP:N as a flag."""
    return bool(hint == dict[int, int])


def choices_of(hint: Any) -> list[str]:
    """The possible words of a setting that is a choice; empty for other settings."""
    literals = (alternative for alternative in alternatives(hint) if get_origin(alternative) is Literal)
    return [word for literal in literals for word in get_args(literal)]


def describe(hint: Any) -> str:
    """The accepted values of a setting, in words.

    >>> describe(tuple[int, ...] | None)
    'whole numbers or none'
    """
    words: list[str] = []
    for alternative in alternatives(hint):
        if get_origin(alternative) is Literal:
            words += get_args(alternative)
        elif get_origin(alternative) is tuple:
            words.append(f"{describe(get_args(alternative)[0]).removeprefix('a ')}s")
        else:
            words.append(_WORDS[get_origin(alternative) or alternative])
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _elements(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else [value]


def _schedule(value: object, name: str) -> dict[int, int]:
    numbers = [
        (convert(step, int, name=f"A step of {name}"), convert(n, int, name=f"{name} from step {step} on"))
        for step, n in pairs_in(value, name)
    ]
    steps = [step for step, _ in numbers]
    for step in steps:
        if steps.count(step) > 1:
            raise UserError(f"{name} names step {step} twice; keep one of the two.")
    return dict(numbers)


def _pairs(value: object, name: str) -> dict[str, str]:
    """
    >>> _pairs(["time=Trade Date", "close=Last"], "columns")
    {'time': 'Trade Date', 'close': 'Last'}
    """
    if value in (None, "none", ["none"]):
        return {}
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _mapping(value, name)
    if isinstance(value, dict):
        pairs = [(key, text) for key, text in value.items()]
    else:
        texts = [
            part
            for word in _elements(value)
            for part in (word.split(",") if isinstance(word, str) and _SEVERAL_PAIRS.fullmatch(word) else [word])
        ]
        words = [text.partition("=") if isinstance(text, str) else (text, "", "") for text in texts]
        pairs = [(key, text if equals else None) for key, equals, text in words]
    for key, text in pairs:
        if not isinstance(key, str) or not isinstance(text, str | int) or isinstance(text, bool) or not key:
            shown = key if text is None else f"{key}: {text}"
            raise UserError(f'{name} must be pairs such as time=Date, but got "{shown}".')
        if [other for other, _ in pairs].count(key) > 1:
            raise UserError(f"{name} names {key} twice; keep one of the two.")
    return {key: str(text) for key, text in pairs}


def _mapping(value: object, name: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{name} must be a JSON object such as '{{\"size\": 8}}', but got {value}: {error.msg} in column "
                f"{error.colno}; put single quotes around it for the shell."
            ) from None
        except RecursionError:
            raise UserError(f"{name} must be a JSON object, but its values are nested too deeply.") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{name} must be named values, such as '{{\"size\": 8}}', but got {value!r}.")
    for key, named in value.items():
        if not is_plain(named):  # a checkpoint with it could not be loaded
            raise UserError(f"{name} must hold numbers, texts, lists and mappings, but {key} is {named!r}; quote it.")
    return value


def _with_numbers_read(value: object) -> object:
    """Convert strings that are numbers; the parsers return 1e6 in a flag and 3e-4 in YAML as strings."""
    if isinstance(value, list):
        return [_with_numbers_read(element) for element in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _without_commas(value: object) -> object:
    """Split lists written as 64,64 or [64, 64], the notations of other programs; return other values unchanged."""
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        return value
    words = " ".join(value).strip(" []()").replace(",", " ").split()
    thousands = any(re.match(r"0\d", word) for word in words)  # 1,024 is one number, not a pair
    return value if thousands or not words else words


def _rejected(value: object, hint: Any, name: str) -> UserError:
    received = in_one_line(value)
    if isinstance(value, str | list):
        received = f'"{in_one_line(" ".join(map(str, value)) if isinstance(value, list) else value)}"'
    # YAML reads 0700 as a number and NO as a boolean; a setting that is text is rejected only for that reason.
    remedy = "; put it in quotes" if {str, tuple[str, ...]} & set(alternatives(hint)) else _number_remedy(value, hint)
    return UserError(
        f"{name} must be {describe(hint)}, but got {received}{remedy}.{did_you_mean(str(value), choices_of(hint))}"
    )


def _number_remedy(value: object, hint: Any) -> str:
    """The remedy for a number with a decimal comma, commas between thousands, or a suffix such as k."""
    if not isinstance(value, str) or not {int, float} & set(alternatives(hint)):
        return ""
    if re.fullmatch(r"-?[1-9]\d{0,2}(,\d{3})+", value):
        return f"; write {value.replace(',', '')}"
    if float in alternatives(hint) and re.fullmatch(r"-?\d*,\d+", value):
        return f"; write {value.replace(',', '.')}"
    if found := re.fullmatch(r"(\d+\.?\d*)([kKmM])", value):
        return f"; write {found[1]}e{3 if found[2] in 'kK' else 6}"
    return ""
