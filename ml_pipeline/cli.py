"""Command: `ml-pipeline`, one name for all the others; `python -m ml_pipeline` is the same.

ml-pipeline --help
ml-pipeline train --n-envs 8
"""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from ml_pipeline import __version__
from ml_pipeline.commands import COMMANDS, PROG
from ml_pipeline.config.errors import UserError, did_you_mean, nearest
from ml_pipeline.monitoring.console import entry


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names with the others; return its exit code.

    argv: none is this process's. Exits with code 2 after one sentence where there is no such command; prints the help
    to stderr where none is named.
    """
    name, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    with entry(PROG):
        if name in ("-h", "--help", ""):
            print(_help(), file=sys.stdout if name else sys.stderr)
            return 0 if name else 2
        if name == "--version":
            print(f"{PROG} {__version__}")
            return 0
        if name not in COMMANDS:
            raise UserError(_unknown(name, rest))
    return import_module(COMMANDS[name].module).main(rest, prog=f"{PROG} {name}")


def _unknown(name: str, rest: Sequence[str]) -> str:
    known = [*COMMANDS, "--help", "--version"]
    if name.startswith("-") and not did_you_mean(name, known):
        return f"A command comes before its flags, as in: {PROG} train {shlex.join([name, *rest])}"
    return f'There is no command "{name}". {nearest(name, known)}'


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            f"usage: {PROG} COMMAND [...]",
            "",
            *(f"  {name:{width}}  {command.sentence}" for name, command in COMMANDS.items()),
            "",
            f"`{PROG} COMMAND --help` shows the flags of a command; `{PROG} --version` prints the version.",
        ]
    )
