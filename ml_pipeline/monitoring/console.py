"""The console of a command: how errors end it, how it shows paths, and the lines that a training run opens with."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ml_pipeline.config.errors import CheckFailed, UserError

_SIGPIPE_EXIT = 141


@contextmanager
def entry(prog: str) -> Iterator[None]:
    """What every command does around its work: print any character, and end with one sentence where it goes wrong.

    A UserError becomes its sentence on stderr and exit code 2, a CheckFailed likewise exit code 1. Where the reader of
    stdout has gone, as in `--help | head`, the command ends with exit code 141, as SIGPIPE would end it.
    """
    _print_anything()
    try:
        try:
            with _modules_of_working_directory():
                yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        raise SystemExit(_SIGPIPE_EXIT) from None
    except (UserError, CheckFailed) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UserError) else 1) from None


def banner(*, n_envs: int, n_workers: int, start_method: str | None) -> str:
    """How the environments are stepped; n_workers 0 is in the trainer's own process.

    >>> print(banner(n_envs=8, n_workers=2, start_method="forkserver"))
    🚀 Using 8 parallel environments for training
       Start method: forkserver · 2 workers
    >>> print(banner(n_envs=8, n_workers=0, start_method=None))
    🚀 Using 8 parallel environments for training
       In the trainer's process · no workers
    """
    environments = "1 environment" if n_envs == 1 else f"{n_envs} parallel environments"
    workers = "1 worker" if n_workers == 1 else f"{n_workers} workers"
    how = f"Start method: {start_method} · {workers}" if n_workers else "In the trainer's process · no workers"
    return f"🚀 Using {environments} for training\n   {how}"


def shown_path(path: Path) -> Path:
    """A path as a user would type it: relative to the working directory, where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _print_anything() -> None:
    """Let prints go on where the terminal's encoding lacks a character (🚀, ±): a question mark stands for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _modules_of_working_directory() -> Iterator[None]:
    """Lets a user's modules be imported where they lie, as `python -m` does. It comes last on the path: a file there
    takes the place of no module that is installed."""
    added = not sys.flags.safe_path and "" not in sys.path
    if added:
        sys.path.append("")
    try:
        yield
    finally:
        with suppress(ValueError):  # a user's module may have removed it
            if added:
                sys.path.remove("")
