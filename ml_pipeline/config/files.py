"""Settings files: YAML or JSON, flat, with the names of the flags.

YAML from untrusted sources is limited to JSON's types: numbers, strings, booleans, null, lists and mappings. YAML
libraries compose nodes recursively in C and convert dates and base-60 numbers, so a file of 30 KB can crash the process
or keep it busy for minutes. This module builds values from the parser's event stream, and rejects a file as soon as it
is nested too deeply or holds too many values.
"""

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.familiar_names import ALIASES, meant_setting
from ml_pipeline.config.settings import hints_of, spelled_out
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runtime.files import read_regular, written_whole

_DUMPER: Any = getattr(
    yaml, "CSafeDumper", yaml.SafeDumper
)  # libyaml writes a run's settings in 1 ms, the Python version in 20 ms
_MOST_BYTES = 1_000_000
"""Largest settings file; the ones we write have about 2,000 bytes."""


def read_settings(path: Path, settings_class: type) -> dict[str, Any]:
    """The settings in a file, converted to their types; settings that the file does not name are absent.

    Names are those of the flags, with underscores or dashes. Files that end in .json are JSON, all others YAML.
    Raises UserError if the file cannot be read or is not a mapping, or for an unknown or repeated name or a wrong type.
    """
    return convert_settings(read_mapping(path), settings_class, source=path)


def convert_settings(values: Mapping[Any, Any], settings_class: type, *, source: Path) -> dict[str, Any]:
    """Convert flat settings, from `flatten` or written by a person, to their types. source: the file, for messages.

    Raises UserError for an unknown or repeated name, or a wrong type.
    """
    hints = hints_of(settings_class)
    named: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = name if name in hints else ALIASES.get(name, name)
        if name not in hints:
            raise UserError(f'{source}: unknown setting "{in_one_line(key)}". {meant_setting(name, hints)}')
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
    """Write flat settings from `flatten` atomically to a file for `read_settings`. Raises UserError if that fails."""
    # No allow_unicode, though it reads better: PyYAML writes U+0085 unquoted, and reads it back as a space.
    text = yaml.dump(dict(values), Dumper=_DUMPER, sort_keys=False, default_flow_style=None)
    try:
        with written_whole(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another folder.") from error


def read_mapping(path: Path) -> dict[Any, Any]:
    """The unconverted content of a settings file: numbers, strings, booleans, None, lists and mappings.

    Raises UserError if the file cannot be read, is larger than 1 MB, holds more than 10,000 values, is nested too
    deeply, or is not a mapping.
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
    except (yaml.YAMLError, ValueError) as error:  # forbidden characters, or a number with too many digits
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


_DEEPEST = 32
"""Levels of nesting; settings have at most six."""
_MOST_VALUES = 10_000
"""Values of an alias count at each use, because a few lines of nested aliases can expand to billions of values. Real
settings have fewer than 100."""
_LONGEST_FLOAT = 400
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("!", f"{_TAG}str")
# The notations of YAML 1.1, so that strings which a YAML library leaves unquoted stay strings. 1e-3 has no point, so it
# is a string there; `convert` makes it a number. Not supported: dates, and numbers in bases 2, 8, 16 and 60.
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((each for word in ("true", "yes", "on") for each in (word, word.title(), word.upper())), True),
    **dict.fromkeys((each for word in ("false", "no", "off") for each in (word, word.title(), word.upper())), False),
    **dict.fromkeys((f"{sign}{word}" for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?", re.ASCII)


def parse_yaml(text: str) -> Any:
    """The value of the only document in `text`; None if there is none.

    Merge keys (<<) and aliases work; values of an alias may be the same object. Keys of mappings are numbers, strings,
    booleans or null.
    Raises UserError, whose message names no file, if the document is nested too deeply, has too many values or repeats
    a key; yaml.YAMLError if the text is not YAML or has an unsupported tag; ValueError if a number has too many digits.
    """
    reader = _Reader(text)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        if "nesting" in (error.problem or ""):  # libyaml has its own limit since 0.2.6, and reads ahead
            raise too_deep() from error
        raise
    finally:
        reader.close()


def add_once(mapping: dict[Hashable, Any], name: Any, value: Any) -> None:
    """Add a value to a mapping that is being read. Raises UserError if the name is already set or is not hashable."""
    if not isinstance(name, Hashable):
        raise UserError(f"a name must be text, but got the {type(name).__name__} {in_one_line(name)}.")
    if name in mapping:
        raise UserError(f"{in_one_line(name)} is set twice; keep one of the two.")
    mapping[name] = value


def check_extent(value: object) -> None:
    """Raise UserError if lists and mappings from JSON exceed the limits of `parse_yaml`."""
    level, n_values = [value], 0
    for _ in range(_DEEPEST):
        n_values += len(level)
        if n_values > _MOST_VALUES:
            raise _too_many()
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each if isinstance(each, list) else [*each, *each.values()])
        ]
    if level:
        raise too_deep()


def too_deep() -> UserError:
    return UserError("its values are nested too deeply.")


class _Reader:
    def __init__(self, text: str) -> None:
        self._parser = _PARSER(text)
        self._n_values = 0
        self._anchors: dict[str, tuple[Any, int]] = {}

    def close(self) -> None:
        self._parser.dispose()

    def document(self) -> Any:
        self._parser.get_event()  # the stream's start
        if isinstance(self._parser.get_event(), yaml.StreamEndEvent):
            return None
        value = self._value(self._parser.get_event(), _DEEPEST)
        self._parser.get_event()  # the document's end
        after = self._parser.get_event()
        if not isinstance(after, yaml.StreamEndEvent):
            raise _problem("found another document", after)
        return value

    def _value(self, event: Any, levels_left: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _problem(f"no whole value above is named &{in_one_line(event.anchor)}", event)
            value, n_values = self._anchors[event.anchor]
            self._count(n_values)
            return value
        before = self._n_values
        self._count(1)
        if levels_left == 0:
            raise too_deep()
        value = self._built(event, levels_left)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._n_values - before
        return value

    def _built(self, event: Any, levels_left: int) -> Any:
        if isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, f"{_TAG}seq")
            values = []
            while not isinstance(each := self._parser.get_event(), yaml.SequenceEndEvent):
                values.append(self._value(each, levels_left - 1))
            return values
        if isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, f"{_TAG}map")
            return self._mapping(levels_left)
        if event.tag is None and event.implicit[0]:
            return _resolved(event.value)
        self._check_tag(event, *_TEXT_TAGS)
        return event.value

    def _mapping(self, levels_left: int) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        merged: dict[Hashable, Any] = {}
        while not isinstance(event := self._parser.get_event(), yaml.MappingEndEvent):
            name = self._value(event, levels_left - 1)
            is_merge = name == _MERGE and isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            value = self._value(self._parser.get_event(), levels_left - 1)
            if is_merge:
                merged = {**_merged(value), **merged}
            else:
                add_once(mapping, name, value)
        return {**merged, **mapping}

    def _count(self, n_values: int) -> None:
        self._n_values += n_values
        if self._n_values > _MOST_VALUES:
            raise _too_many()

    def _check_tag(self, event: Any, *known: str) -> None:
        if event.tag is not None and event.tag not in known:
            raise _problem(f"the tag {in_one_line(event.tag)} is not supported; leave it out", event)


def _problem(sentence: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=sentence, problem_mark=event.start_mark)


def _too_many() -> UserError:
    return UserError(f"it holds more than {_MOST_VALUES:,} values, too many for settings.")


def _merged(value: object) -> dict[Hashable, Any]:
    """The values of a merge key: one mapping, or several of which the first takes precedence."""
    mappings = value if isinstance(value, list) else [value]
    merged: dict[Hashable, Any] = {}
    for each in mappings:
        if not isinstance(each, dict):
            raise UserError(f"<< must name a mapping, or a list of mappings, but got {in_one_line(each)}.")
        merged = {**each, **merged}
    return merged


def _resolved(text: str) -> Any:
    """The value of an unquoted scalar.

    >>> [_resolved(each) for each in ("8", "-0.5", "1.0e-05", "1_000", "yes", "~")]
    [8, -0.5, 1e-05, 1000, True, None]
    >>> [_resolved(each) for each in ("1e-3", "0700", "1:59", "2024-02-30")]
    ['1e-3', '0700', '1:59', '2024-02-30']
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if len(text) <= _LONGEST_FLOAT and _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text
