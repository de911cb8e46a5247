"""Command-line flags. tyro splits the command line; conversion and errors are the same as for files.

tyro passes every value on as the words typed. So flags and files share one conversion, each error is one sentence, and
we know which settings were given.

The help has one block per group of settings. An entry shows the flag, its type, the sentence below its field, and its
default.
"""

import ast
import contextlib
import inspect
import io
import re
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, make_dataclass
from functools import cache
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ml_pipeline.config.conversion import alternatives, convert, is_list, is_mapping, is_pairs, is_schedule
from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.familiar_names import ALIASES, familiar_name, setting_for
from ml_pipeline.config.settings import IN_TEXT, Settings, build, groups_of, hints_of, spelled_out
from ml_pipeline.config.wording import definitions, wrapped, written

# If one of these flags is repeated, its values accumulate; for others the last value counts.
_REPEATED = frozenset({"accept_feature", "callback", "sink"})
_ALIASES = {"env_type": "vec_env", **ALIASES}


class _Words(list[str]):
    """The words typed after a flag, as opposed to a default."""


def parse_settings(argv: Sequence[str], settings_class: type[Settings], *, prog: str, description: str) -> Settings:
    """The settings of a command line, with defaults for the rest.

    Raises as `read_flags` does, and UserError if a value is out of range.
    """
    return build(settings_class, read_flags(argv, settings_class, prog=prog, description=description))


def read_flags(argv: Sequence[str], settings_class: type, *, prog: str, description: str) -> dict[str, Any]:
    """The settings that the command line names, converted; other settings are absent.

    A field without a default is a positional argument if it is marked as `tyro.conf.Positional`.
    Raises UserError about a flag that is unknown, has no value, or one of the wrong type; exits after --help and
    --help-all.
    """
    hints = hints_of(settings_class)
    positionals = positionals_of(settings_class)
    argv = _gathered([_own_flag(word, hints) for word in argv], hints)
    if {"-h", "--help", "--help-all"} & {*argv}:
        print_help(settings_class, prog=prog, description=description, every="--help-all" in argv)
        raise SystemExit(0)
    parsed, unknown = _split(argv, settings_class, hints, prog=prog)
    if unknown:
        flags = {name: hint for name, hint in hints.items() if name not in positionals}
        raise _unknown(unknown[0], argv, flags, full_help=_full_help(settings_class))
    given: dict[str, Any] = {}
    for group in groups_of(settings_class):
        for name, value in vars(getattr(parsed, group)).items():
            if isinstance(value, _Words):
                given[name] = list(value) if is_list(hints[name]) else value[0]
            elif isinstance(value, bool) and {flag_of(name), flag_of(f"no_{name}")} & {_dashed(word) for word in argv}:
                given[name] = value
    shown = {name: name.upper() if name in positionals else flag_of(name) for name in hints}
    return {
        name: value if callable(value) else convert(value, hints[name], name=shown[name])
        for name, value in spelled_out(given).items()
    }


def _own_flag(word: str, hints: dict[str, Any]) -> str:
    """A word of the command line, with an alias replaced by the flag's name."""
    name, given, value = word.partition("=")
    alias = name.removeprefix("--").replace("-", "_")
    no = "no_" if alias.startswith("no_") else ""
    ours = _ALIASES.get(alias.removeprefix(no), "")
    return f"{flag_of(f'{no}{ours}')}{given}{value}" if ours in hints else word


@contextlib.contextmanager
def naming_flags(*names: str) -> Iterator[None]:
    """Within the block, messages of UserErrors name these settings as flags: --n-envs instead of n_envs."""
    try:
        yield
    except UserError as error:
        named = re.sub(rf"(?<![\w-])({'|'.join(names)})(?!\w)", lambda found: flag_of(found[0]), str(error))
        raise UserError(named) from error


def positionals_of(settings_class: type) -> list[str]:
    """The settings that are positional arguments: those without a default."""
    groups = groups_of(settings_class).values()
    every = [each for group in groups for each in fields(group)]
    return [each.name for each in every if each.default is MISSING and each.default_factory is MISSING]


def _gathered(argv: Sequence[str], hints: dict[str, Any]) -> list[str]:
    """The command line with all values of a repeatable flag moved to its first occurrence."""
    repeated = {flag_of(name) for name in _REPEATED & {*hints}}
    words: list[str] = []
    ends: dict[str, int] = {}  # index after the last value of each flag
    flag = ""
    for word in argv:
        name, given, value = word.partition("=")
        if word.startswith("-"):
            flag = _dashed(name)
            if flag in repeated and flag in ends:
                if not given:
                    continue
                added = value
            else:
                words.append(word)
                ends[flag] = len(words)
                continue
        else:
            added = word
        at = ends[flag] if flag in repeated else len(words)
        words.insert(at, added)
        ends = {each: end + (end >= at) for each, end in ends.items()}
    return words


def _split(argv: Sequence[str], settings_class: type, hints: dict[str, Any], *, prog: str) -> tuple[Any, list[str]]:
    """Split the command line with tyro: the values as _Words, and the words that belong to no flag."""
    registry = ConstructorRegistry()
    registry.primitive_rule(_as_words)
    groups = [(name, _unchecked(group, hints)) for name, group in groups_of(settings_class).items()]
    flags_class: Any = make_dataclass("Flags", groups)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # drops tyro's own error, several lines in a box
            return tyro.cli(
                flags_class,
                prog=prog,
                args=list(argv),
                add_help=False,
                return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
                registry=registry,
            )
    except SystemExit as stop:
        raise _incomplete(argv, settings_class, hints) from stop


def _as_words(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Make tyro return values as words. Booleans, which have no metavar, keep tyro's --x and --no-x."""
    metavar = metavar_of(info.type)
    if metavar is None:
        return None
    return PrimitiveConstructorSpec(
        nargs="*" if is_list(info.type) else 1,
        metavar=metavar,
        instance_from_str=_Words,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [written(value)],
    )


def _unchecked(group: type, hints: dict[str, Any]) -> type:
    """A copy of the group without range checks, because its values are still words. No flag takes a function."""
    typed = {name: hints[name] for name in IN_TEXT if name in group.__annotations__}
    changed = {"__post_init__": lambda self, *_: None, "__annotations__": typed}
    return type(group.__name__, (group,), changed)


def _dashed(word: str) -> str:
    return word.replace("_", "-")


def _incomplete(argv: Sequence[str], settings_class: type, hints: dict[str, Any]) -> UserError:
    """The error for a missing word: a flag without its value, or a missing positional argument."""
    full_help = _full_help(settings_class)
    with_value = {flag_of(name): name for name, hint in hints.items() if hint is not bool and not is_list(hint)}
    for word, following in zip_longest(argv, argv[1:]):
        if _dashed(word) in with_value and (following is None or re.match(r"-(?!\.?\d)", following)):
            return UserError(f"{_dashed(word)} needs a value, but got {following or 'none'}; {full_help} describes it.")
    return UserError(f"{', '.join(positionals_of(settings_class)).upper()} is missing; {full_help} describes it.")


def _full_help(settings_class: type) -> str:
    """The flag that lists every flag."""
    return "--help-all" if hasattr(settings_class, "USUAL") else "--help"


def _unknown(word: str, argv: Sequence[str], hints: dict[str, Any], *, full_help: str) -> UserError:
    switches = {flag_of(name): flag_of(f"no_{name}") for name, hint in hints.items() if hint is bool}
    if not word.startswith("-"):
        return _stray(word, argv, hints, switches, full_help)
    flag = _dashed(word).partition("=")[0]
    known = [*map(flag_of, hints), *switches.values()]
    meant = familiar_name(flag.lstrip("-").replace("-", "_"), {name: flag_of(name) for name in hints})
    return UserError(f"Unknown flag {flag}.{meant or did_you_mean(flag, known) or f' {full_help} lists every flag.'}")


def _stray(
    word: str, argv: Sequence[str], hints: dict[str, Any], switches: dict[str, str], full_help: str
) -> UserError:
    """The error for a word that follows no flag which takes it."""
    words = [part for argument in argv for part in argument.split("=", maxsplit=1)]
    for before, after in pairwise(words):
        if after == word and _dashed(before) in {*switches, *switches.values()}:
            on = _dashed(before).replace("--no-", "--")
            return UserError(f'{_dashed(before)} takes no value, but got "{word}"; say {on} or {switches[on]}.')
    meant = setting_for(word, hints)
    remedy = f"say {flag_of(meant)} {word}" if meant else f"{full_help} lists what each flag takes"
    return UserError(f'"{word}" belongs to no flag; {remedy}.')


_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_WIDEST = 120
_FLAG_COLUMN = 26


class _Entry(NamedTuple):
    """The help of a flag or positional argument: how to type it, and its sentence."""

    typed: str
    sentence: str
    is_positional: bool = False


def flag_of(name: str) -> str:
    """The flag of a setting.

    >>> flag_of("n_steps")
    '--n-steps'
    """
    return f"--{name.replace('_', '-')}"


def print_help(settings_class: type, *, prog: str, description: str, every: bool = True) -> None:
    """Print the help, no wider than the terminal and no wider than 120 characters.

    every: list all settings. Otherwise, groups that `settings_class.USUAL` lists show the settings that it names.
    """
    usual: Mapping[str, Collection[str]] = {} if every else getattr(settings_class, "USUAL", {})
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    hints = hints_of(settings_class)
    groups = {
        f"{name} options": (
            group,
            [_entry(group, each, hints[each.name]) for each in fields(group) if each.name in usual.get(name, hints)],
        )
        for name, group in groups_of(settings_class).items()
    }
    positionals = [each for _, entries in groups.values() for each in entries if each.is_positional]
    words = [f"usage: {prog}", "[-h]", "[OPTIONS]", *(each.typed for each in positionals)]
    lines = [*wrapped(" ".join(words), width, "    "), "", *wrapped(description, width)]
    if positionals:
        lines += ["", "positional arguments:", *_listed(positionals, width)]
    helps = [_Entry("-h, --help", "Show this help and exit.")]
    if hasattr(settings_class, "USUAL"):
        helps = [
            _Entry("-h, --help", "Show the usual options and exit."),
            _Entry("--help-all", "Show all options and exit."),
        ]
    lines += ["", "options:", *_listed(helps, width)]
    for title, (group, entries) in groups.items():
        flags = [each for each in entries if not each.is_positional]
        if flags:
            about = (inspect.getdoc(group) or "").partition("\n")[0]
            lines += ["", f"{title}:", *wrapped(about, width, "  ", "  "), "", *_listed(flags, width)]
    print("\n".join(lines))


def metavar_of(hint: Any) -> str | None:
    """The placeholder for a value of this type in the help; None for a switch, which takes no value."""
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
    """The metadata of an `Annotated` type."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        yield from _marks(inner)
        yield from marks


@cache
def _sentences(group: type) -> dict[str, str]:
    """The sentence below each field of the class and its bases, on one line."""
    found: dict[str, str] = {}
    for each in reversed(group.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(each))
        except (OSError, TypeError):  # the class was created by a function; its bases have the sentences
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
