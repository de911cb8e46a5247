"""The help of flags: a block per group of settings, in lines that break between words at any width.

A setting's sentence is the text below its field, its value is named by its type, and its default stands behind both.
"""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from ml_pipeline.config.conversion import alternatives, is_mapping, is_pairs, is_schedule
from ml_pipeline.config.settings import groups_of, hints_of
from ml_pipeline.config.wording import definitions, wrapped, written

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_WIDEST = 120
_FLAG_COLUMN = 26


class _Entry(NamedTuple):
    """A flag or positional argument: how it is typed, and what is said of it."""

    typed: str
    sentence: str
    is_positional: bool = False


def flag_of(name: str) -> str:
    """The flag of a setting.

    >>> flag_of("n_steps")
    '--n-steps'
    """
    return f"--{name.replace('_', '-')}"


def print_help(settings_class: type, *, prog: str, description: str) -> None:
    """Print the help, no wider than the terminal and no wider than 120 characters."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    hints = hints_of(settings_class)
    groups = {
        f"{name} options": (group, [_entry(group, each, hints[each.name]) for each in fields(group)])
        for name, group in groups_of(settings_class).items()
    }
    positionals = [each for _, entries in groups.values() for each in entries if each.is_positional]
    words = [f"usage: {prog}", "[-h]", "[OPTIONS]", *(each.typed for each in positionals)]
    lines = [*wrapped(" ".join(words), width, "    "), "", *wrapped(description, width)]
    if positionals:
        lines += ["", "positional arguments:", *_listed(positionals, width)]
    lines += ["", "options:", *_listed([_Entry("-h, --help", "show this help message and exit")], width)]
    for title, (group, entries) in groups.items():
        flags = [each for each in entries if not each.is_positional]
        if flags:
            about = (inspect.getdoc(group) or "").partition("\n")[0]
            lines += ["", f"{title}:", *wrapped(about, width, "  ", "  "), "", *_listed(flags, width)]
    print("\n".join(lines))


def metavar_of(hint: Any) -> str | None:
    """How the help names a value of this type; None: a switch, which takes no value."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(get_args(hint)) + "}"
    if is_schedule(hint) or is_pairs(hint):
        return "[STEP:N ...]" if is_schedule(hint) else "[NAME=TEXT ...]"
    if is_mapping(hint):
        return "JSON"
    if get_origin(hint) is tuple:
        return f"[{metavar_of(get_args(hint)[0])} ...]"
    if len(alternatives(hint)) > 1:
        return "|".join(filter(None, map(metavar_of, alternatives(hint))))
    return _METAVARS.get(hint)


def _entry(group: type, each: Field[Any], hint: Any) -> _Entry:
    marks = [*_marks(get_type_hints(group, include_extras=True)[each.name])]
    is_positional = tyro.conf.Positional in marks
    metavar = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None) or metavar_of(hint)
    if is_positional:
        typed = metavar or each.name.upper()
    elif hint is bool:
        is_alone = tyro.conf.FlagCreatePairsOff in marks
        typed = flag_of(each.name) if is_alone else f"{flag_of(each.name)}, {flag_of(f'no_{each.name}')}"
    else:
        typed = f"{flag_of(each.name)} {metavar}"
    value = each.default_factory() if each.default_factory is not MISSING else each.default
    default = "(required)" if value is MISSING else f"(default: {written(value)})"
    hints = (getattr(mark, "help_behavior_hint", None) for mark in marks)
    default = next((each for each in hints if each is not None), default)
    return _Entry(typed, f"{_sentences(group).get(each.name, '')} {default}".strip(), is_positional)


def _marks(hint: Any) -> Iterator[Any]:
    """What `Annotated` says of a type."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        yield from _marks(inner)
        yield from marks


@cache
def _sentences(group: type) -> dict[str, str]:
    """The text below each field of the class and of its bases, in one line."""
    found: dict[str, str] = {}
    for each in reversed(group.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(each))
        except (OSError, TypeError):  # made by a function: its bases have the texts
            continue
        parsed = ast.parse(source).body[0]
        assert isinstance(parsed, ast.ClassDef)
        for field, below in pairwise(parsed.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def _listed(entries: Sequence[_Entry], width: int) -> list[str]:
    return definitions([(each.typed, each.sentence) for each in entries], width, _FLAG_COLUMN)
