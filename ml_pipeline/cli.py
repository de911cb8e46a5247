"""The `ml-pipeline` command, which runs all others; `python -m ml_pipeline` is the same.

ml-pipeline --help
ml-pipeline train --n-envs 8
"""

import sys
from collections.abc import Sequence

from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

# Everything else is imported inside functions, after the handler for Ctrl-C is installed.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument with the remaining ones; return its exit code.

    argv: None means the arguments of this process. Exits with code 2 and one sentence if there is no such command;
    without a command, prints the help to stderr.
    """
    if argv is None:
        exit_at_once_on_signals("ml-pipeline")
    from importlib import import_module

    from ml_pipeline import __version__
    from ml_pipeline.commands import COMMANDS, PROG
    from ml_pipeline.config.errors import UserError
    from ml_pipeline.monitoring.console import entry

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
    exit_code: int = import_module(COMMANDS[name].module).main(rest, prog=f"{PROG} {name}")
    return exit_code


def _unknown(name: str, rest: Sequence[str]) -> str:
    import shlex

    from ml_pipeline.commands import COMMANDS, PROG
    from ml_pipeline.config.errors import did_you_mean

    known = [*COMMANDS, "--help", "--version"]
    if name.startswith("-") and not did_you_mean(name, known):
        return f"The command comes before its flags, as in: {PROG} train {shlex.join([name, *rest])}"
    remedy = did_you_mean(name, known) or f" `{PROG} --help` lists the commands."
    return f'There is no command "{name}".{remedy}'


def _help() -> str:
    from shutil import get_terminal_size

    from ml_pipeline.commands import COMMANDS, PROG
    from ml_pipeline.config.wording import definitions, wrapped

    width = get_terminal_size().columns
    ending = f"`{PROG} COMMAND --help` shows the flags of a command; `{PROG} --version` prints the version."
    return "\n".join(
        [
            f"usage: {PROG} COMMAND [...]",
            "",
            *definitions(
                [(name, command.sentence) for name, command in COMMANDS.items()], width, max(map(len, COMMANDS)) + 4
            ),
            "",
            *wrapped(ending, width),
        ]
    )
