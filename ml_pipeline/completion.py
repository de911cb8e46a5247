"""Command: print the completion script for bash or zsh: commands, their flags, and the values of a flag.

eval "$(ml-pipeline completion bash)"      # in ~/.bashrc
eval "$(ml-pipeline completion zsh)"       # in ~/.zshrc, after compinit
"""

import argparse
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import shtab
import tyro

from ml_pipeline.commands import COMMANDS, PROG
from ml_pipeline.config.conversion import alternatives, is_list
from ml_pipeline.config.flags import flag_of, parse_settings, positionals_of
from ml_pipeline.config.settings import hints_of
from ml_pipeline.monitoring.console import entry


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """Whose script is printed."""

    shell: tyro.conf.Positional[Literal["bash", "zsh"]]
    """Shell that reads the script."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The settings of this command's flags."""

    completion: CompletionConfig


def main(argv: list[str], *, prog: str = "completion") -> int:
    """Print the script; return 0. Exits with code 2 and one sentence if the input is invalid."""
    with entry(prog):
        settings = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["completion"].sentence)
        print(shtab.complete(_every_command(), settings.completion.shell))
    return 0


def _every_command() -> argparse.ArgumentParser:
    """All commands and flags as a parser for shtab; it parses nothing."""
    parser = argparse.ArgumentParser(PROG)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        of_command = commands.add_parser(name, help=command.sentence)
        if command.settings is not None:
            _add_flags(of_command, resolve_name(command.settings))
    return parser


def _add_flags(parser: argparse.ArgumentParser, settings_class: type) -> None:
    positionals = positionals_of(settings_class)
    for name, hint in hints_of(settings_class).items():
        if hint is bool:
            parser.add_argument(flag_of(name), flag_of(f"no_{name}"), action="store_true")
            continue
        values: dict[str, Any] = {"choices": _choices(hint), "nargs": "*" if is_list(hint) else None}
        action = parser.add_argument(name if name in positionals else flag_of(name), **values)
        if Path in alternatives(hint):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _choices(hint: Any) -> list[str] | None:
    """The fixed words that a flag accepts; None if there are none."""
    literals = [each for each in alternatives(hint) if get_origin(each) is Literal]
    return list(chain.from_iterable(map(get_args, literals))) or None
