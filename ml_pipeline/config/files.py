"""Settings in files: YAML or JSON, flat, with the names of the flags."""

import contextlib
import json
import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.familiar_names import familiar_name
from ml_pipeline.config.scheduled import spelled_out
from ml_pipeline.config.settings import hints_of
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runtime.regular_file import open_regular

_DUMPER: Any = getattr(
    yaml, "CSafeDumper", yaml.SafeDumper
)  # libyaml's takes 1 ms for a run's settings, in place of 20
_MOST_VALUES = 10_000
"""Of a settings file; ours hold less than a hundred."""
_MOST_BYTES = 1_000_000
"""Of a config.yaml; ours take 2,000."""


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
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:  # never through a link that lies there
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another folder.") from error


def read_written_yaml(path: Path) -> dict[str, Any]:
    """What `write_yaml` wrote, unconverted: nine times as fast as `read_mapping`, for a list of hundreds of runs.

    Raises UserError where the file cannot be read, or holds something else.
    """
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES)
        content = _loaded(getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UserError as error:
        raise UserError(f"{path} holds no settings of a run: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} holds no settings of a run: it is not valid YAML.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no settings of a run.")
    return content


def read_mapping(path: Path) -> Mapping[Any, Any]:
    """What a file of settings holds, as it is written. Raises UserError: it cannot be read, or is no mapping."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; save it as YAML or JSON.") from error
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        content = _parse_json(text) if kind == "JSON" else _parse_yaml(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error.msg} in line {error.lineno}.") from error
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path} is not valid YAML: {error.problem}{line}.") from error
    except RecursionError as error:
        raise UserError(f"{path} holds no settings: its values lie too deep within each other.") from error
    except (yaml.YAMLError, ValueError) as error:  # characters that YAML forbids, a date such as 2024-02-30
        raise UserError(f"{path} is not valid {kind}: {' '.join(str(error).split()).rstrip('.')}.") from error
    if content is None:  # an empty file
        return {}
    if not isinstance(content, dict):
        raise UserError(f'{path} must hold lines such as "n_envs: 8", but holds a {type(content).__name__}.')
    return content


def _parse_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique)


def _parse_yaml(text: str) -> object:
    return _loaded(_UniqueKeysLoader(text))


def _loaded(loader: Any) -> object:
    """What a loader of YAML makes of its text. Raises UserError where aliases stand for too many values."""
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_size(node, {}) > _MOST_VALUES:
            raise UserError(f"it holds more than {_MOST_VALUES:,} values, which are no settings.")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded_size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node holds where each alias counts as often as it is used; infinity if it holds itself.

    A few lines of aliases of aliases stand for billions of values, which any look at them would write out.
    """
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        inner = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_expanded_size(each, known) for each in inner)
    return known[id(node)]


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = {}
    for key, value in pairs:
        if not isinstance(key, Hashable):
            raise UserError(f"a name must be text, but got the {type(key).__name__} {key}.")
        if key in mapping:
            raise UserError(f"{key} is set twice; keep one of the two.")
        mapping[key] = value
    return mapping


class _UniqueKeysLoader(yaml.SafeLoader):
    """YAML's safe loader, which by itself lets the last of two equal keys win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _unique([(self.construct_object(key, deep=True), None) for key, _ in node.value])
        return super().construct_mapping(node, deep)
