"""Writes the tables of the settings page from the configuration's fields and the sentences below them.

The sources are read, not run, so that the pages are built without torch. A page says where a table goes:
`<!-- settings of ml_pipeline.config.ppo.PPOConfig -->`.
"""

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

import griffe

_PLACE = re.compile(r"<!-- settings of ([\w.]+) -->")
_ROOT = Path(__file__).resolve().parents[2]
_METAVARS = {
    "int": "INT",
    "float": "FLOAT",
    "Scheduled": "FLOAT",
    "str": "TEXT",
    "Network": "TEXT",
    "Path": "PATH",
    "dict": "JSON",
}


class Setting(NamedTuple):
    """A field of a settings class as the command line shows it; `values` is empty for one that is on or off."""

    name: str
    values: str
    default: str
    sentence: str


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in the tables of a page. mkdocs calls this for each page."""
    if not _PLACE.search(markdown):
        return markdown
    package = griffe.load("ml_pipeline", search_paths=[_ROOT])
    return _PLACE.sub(lambda place: table(settings_of(package, place[1])), markdown)


def settings_of(package: griffe.Module, path: str) -> list[Setting]:
    """The fields of a dataclass, in the order of --help: those of its last base first."""
    chosen = package[path.removeprefix("ml_pipeline.")]
    fields = [
        member
        for each in [*reversed(chosen.mro()), chosen]
        for member in each.members.values()
        if isinstance(member, griffe.Attribute) and "property" not in member.labels and member.annotation is not None
    ]
    return [_setting(field) for field in fields]


def table(settings: list[Setting]) -> str:
    """One row per setting."""
    rows = ["| flag | default | meaning |", "| --- | --- | --- |"]
    return "\n".join([*rows, *map(_row, settings)])


def _row(setting: Setting) -> str:
    name = setting.name.replace("_", "-")
    flag = f"<code>--{name} {setting.values}</code>" if setting.values else f"<code>--{name}, --no-{name}</code>"
    return " | ".join(["| " + flag.replace("|", "&#124;"), f"`{setting.default}`", f"{setting.sentence} |"])


def _setting(field: griffe.Attribute) -> Setting:
    assert field.docstring is not None, f"{field.path} has no sentence"
    assert field.parent is not None
    values = _values(ast.parse(str(field.annotation), mode="eval").body, field.parent)
    default = _plain(_evaluated(str(field.value), field.parent))
    return Setting(field.name, values, default, " ".join(field.docstring.value.split()))


def _values(annotation: ast.expr, scope: griffe.Object) -> str:
    """An annotation as --help shows it: {constant,linear}, INT|{auto}, [TEXT ...].

    None is left out, since a setting is switched off by leaving it out.
    """
    match annotation:
        case ast.BinOp(left=left, right=right):
            return "|".join(filter(None, (_values(left, scope), _values(right, scope))))
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            names = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return "{" + ",".join(_choices(name, scope) for name in names) + "}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[element, _])):
            return f"[{_values(element, scope)} ...]"
        case ast.Name(id="bool") | ast.Constant(value=None):
            return ""
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if name in _METAVARS:
            return _METAVARS[name]
        case ast.Name(id=name):
            meant = _meant(name, scope)
            return _values(ast.parse(str(meant.value), mode="eval").body, scope)
    raise ValueError(f"no words for the type {ast.unparse(annotation)}")


def _choices(choice: ast.expr, scope: griffe.Object) -> str:
    """One choice of a `Literal`; the choices of another that it names, parted by commas."""
    return _values(choice, scope).strip("{}") if isinstance(choice, ast.Name) else ast.literal_eval(choice)


def _evaluated(source: str, scope: griffe.Object) -> Any:
    if source == "field(default_factory=dict)":
        return {}
    return ast.literal_eval(str(_meant(source, scope).value) if source.isidentifier() and source.isupper() else source)


def _meant(name: str, scope: griffe.Object) -> griffe.Attribute:
    """What a name of the scope's module stands for, wherever it was imported from."""
    path = scope.resolve(name)
    meant = scope.package[path.partition(".")[2]]
    assert isinstance(meant, griffe.Attribute), f"{path} is no plain value"
    return meant


def _plain(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
