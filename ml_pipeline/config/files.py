"""Settings in files: YAML or JSON, flat, with the names of the flags."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.familiar_names import familiar_name
from ml_pipeline.config.plain_yaml import add_once, check_extent, parse_yaml, too_deep
from ml_pipeline.config.scheduled import spelled_out
from ml_pipeline.config.settings import hints_of
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runtime.regular_file import read_regular
from ml_pipeline.runtime.whole_file import written_whole

_DUMPER: Any = getattr(
    yaml, "CSafeDumper", yaml.SafeDumper
)  # libyaml's takes 1 ms for a run's settings, in place of 20
_MOST_BYTES = 1_000_000
"""Of a file of settings; ours take 2,000."""


def read_settings(path: Path, settings_class: type) -> dict[str, Any]:
    """The settings that a file names, converted; what it does not name is absent.

    Names are those of flags, with underscores or dashes. A file that ends in .json is JSON, any other YAML.
    Raises UserError: a file that cannot be read or is no mapping, a name unknown or given twice, a wrong type.
    """
    return convert_settings(read_mapping(path), settings_class, source=path)


def convert_settings(values: Mapping[Any, Any], settings_class: type, *, source: Path) -> dict[str, Any]:
    """Flat settings of `source`, as `flatten` gives them or a person writes them, converted to their types.

    Raises UserError: a name unknown or given twice, a wrong type.
    """
    hints = hints_of(settings_class)
    named: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in hints:
            meant = familiar_name(name, {each: each for each in hints}) or f" {nearest(name, hints)}"
            raise UserError(f'{source}: unknown setting "{in_one_line(key)}".{meant}')
        if name in named:
            raise UserError(f"{source}: {name} is set twice; keep one of the two.")
        named[name] = value
    try:
        named = spelled_out(named)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return {
        name: value if callable(value) else convert(value, hints[name], name=f"{source}: {name}")
        for name, value in named.items()
    }


def write_yaml(path: Path, values: Mapping[str, object]) -> None:
    """Flat settings, as `flatten` gives them, to a file that `read_settings` takes; whole, or the old one stays.

    Raises UserError where it cannot be written.
    """
    # allow_unicode would be easier to read and is wrong: PyYAML leaves U+0085 bare, and reads it back as a space.
    text = yaml.dump(dict(values), Dumper=_DUMPER, sort_keys=False, default_flow_style=None)
    try:
        with written_whole(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another folder.") from error


def read_mapping(path: Path) -> dict[Any, Any]:
    """What a file of settings holds, as it is written: numbers, texts, booleans, None, lists and mappings.

    Raises UserError: it cannot be read, is larger than a megabyte, holds more than 10,000 values or too deep ones, or
    is no mapping.
    """
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; save it as YAML or JSON.") from error
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        content = _parse_json(text) if kind == "JSON" else parse_yaml(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error.msg} in line {error.lineno}.") from error
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path} is not valid YAML: {error.problem}{line}.") from error
    except (yaml.YAMLError, ValueError) as error:  # characters that YAML forbids, a number of too many digits
        raise UserError(f"{path} is not valid {kind}: {' '.join(str(error).split()).rstrip('.')}.") from error
    if content is None:  # an empty file
        return {}
    if not isinstance(content, dict):
        raise UserError(f'{path} must hold lines such as "n_envs: 8", but holds a {type(content).__name__}.')
    return content


def _parse_json(text: str) -> object:
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise too_deep() from None
    check_extent(content)
    return content


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for name, value in pairs:
        add_once(mapping, name, value)
    return mapping
