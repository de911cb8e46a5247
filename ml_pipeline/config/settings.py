"""A settings class: a frozen dataclass whose fields are groups, themselves frozen dataclasses of single settings.

Names of settings are unique over all groups, so that flags and files are flat: `PPOConfig.n_steps` is `--n-steps` as a
flag and `n_steps` in a file. Groups check their own ranges in `__post_init__`; the settings class checks what concerns
several of them.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ml_pipeline.config.scheduled import Scheduled, function_shown

Settings = TypeVar("Settings")


def groups_of(settings_class: type) -> dict[str, type]:
    """The groups of a settings class, by field name, in order."""
    hints = get_type_hints(settings_class)
    return {field.name: hints[field.name] for field in fields(settings_class)}


def hints_of(settings_class: type) -> dict[str, Any]:
    """The type of every setting as flags and files have it, flat and in order; what `spelled_out` reads is a number."""
    hints: dict[str, Any] = {}
    for group in groups_of(settings_class).values():
        group_hints = get_type_hints(group)
        for field in fields(group):
            assert field.name not in hints, f"{field.name} is a setting of two groups"
            hint = group_hints[field.name]
            hints[field.name] = float if hint == Scheduled else hint
    return hints


def build(settings_class: type[Settings], values: Mapping[str, object]) -> Settings:
    """Settings with these values, and defaults where there is none. Raises UserError where a value is out of range."""
    groups = {
        name: group(**{field.name: values[field.name] for field in fields(group) if field.name in values})
        for name, group in groups_of(settings_class).items()
    }
    return settings_class(**groups)


def flatten(settings: object) -> dict[str, object]:
    """Every setting by name, as what YAML and JSON know: numbers, texts, booleans, lists and None."""
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
