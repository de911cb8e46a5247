"""Settings in files: YAML or JSON, flat, with the names of the flags.

YAML that anyone may have written is read as what JSON knows: numbers, texts, booleans, null, lists and mappings. A YAML
library composes nodes recursively, in C, and turns text into dates and numbers to the base 60: 30 KB can end the
process or keep it busy for minutes. Here values are built from the parser's events, which come one after another, and
the text is refused as soon as it goes too deep or holds too many values.
"""

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.familiar_names import meant_setting
from ml_pipeline.config.settings import hints_of, spelled_out
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runtime.files import read_regular, written_whole

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


_DEEPEST = 32
"""Lists and mappings within each other; settings have six at most."""
_MOST_VALUES = 10_000
"""Each alias counts as often as it is used: a few lines of aliases of aliases stand for billions of values. Settings
have less than a hundred."""
_LONGEST_FLOAT = 400
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("!", f"{_TAG}str")
# As YAML 1.1 writes them, so that a text which a YAML library leaves without quotes stays a text. 1e-3 has no point and
# is a text there; `convert` makes it a number. Left out: dates, and numbers to the bases 2, 8, 16 and 60.
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
    """The value of the one document in `text`; None if there is none.

    Merge keys (<<) and aliases work; equal values may be the same object. Names of mappings are numbers, texts,
    booleans or null. Raises UserError, without a file's name: too deep, too many values, a name set twice;
    yaml.YAMLError: no YAML, or a tag for anything else; ValueError: a number of too many digits.
    """
    reader = _Reader(text)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        if "nesting" in (error.problem or ""):  # libyaml has a limit of its own since 0.2.6, and looks ahead
            raise too_deep() from error
        raise
    finally:
        reader.close()


def add_once(mapping: dict[Hashable, Any], name: Any, value: Any) -> None:
    """Add a value to a mapping that is being read. Raises UserError if the name is set already, or cannot be one."""
    if not isinstance(name, Hashable):
        raise UserError(f"a name must be text, but got the {type(name).__name__} {in_one_line(name)}.")
    if name in mapping:
        raise UserError(f"{in_one_line(name)} is set twice; keep one of the two.")
    mapping[name] = value


def check_extent(value: object) -> None:
    """Raise UserError if lists and mappings, as JSON makes them, hold more, or lie deeper, than `parse_yaml` allows."""
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
    return UserError("its values lie too deep within each other.")


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
            raise _problem(f"the tag {in_one_line(event.tag)} stands for no plain value; leave it out", event)


def _problem(sentence: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=sentence, problem_mark=event.start_mark)


def _too_many() -> UserError:
    return UserError(f"it holds more than {_MOST_VALUES:,} values, which are no settings.")


def _merged(value: object) -> dict[Hashable, Any]:
    """The values of a merge key: of one mapping or of several, of which the first one counts."""
    mappings = value if isinstance(value, list) else [value]
    merged: dict[Hashable, Any] = {}
    for each in mappings:
        if not isinstance(each, dict):
            raise UserError(f"<< must name a mapping, or a list of mappings, but got {in_one_line(each)}.")
        merged = {**each, **merged}
    return merged


def _resolved(text: str) -> Any:
    """What a text without quotes stands for.

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
