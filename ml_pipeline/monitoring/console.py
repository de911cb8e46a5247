"""The console of a command: how errors end it, and the first lines of a training run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.runtime.interrupts import Interrupted, raising_on_signals
from ml_pipeline.runtime.standard_streams import OutputLost, guard_standard_streams


@contextmanager
def entry(prog: str, *, first_signal_alone: bool = False) -> Iterator[None]:
    """Context of every command: allows any character in output, and ends with one sentence after an error.

    A UserError prints its message to stderr and gives exit code 2, a CheckFailed exit code 1. Ctrl-C, SIGTERM and
    SIGHUP raise Interrupted, which prints a sentence and gives exit code 128 + the signal. If stdout can no longer be
    written, the command ends with exit code 1, and prints a sentence unless its reader has closed the pipe, as in
    `--help | head`. A command that must continue without a reader calls `outlive_readers`.

    first_signal_alone: ignore signals after the first, for a command that cleans up quickly.
    """
    guard_standard_streams(outlive_readers=False)
    try:
        with raising_on_signals(once=first_signal_alone):
            _require_working_directory()
            try:
                with _modules_of_working_directory():
                    yield
            finally:
                sys.stdout.flush()
    except OutputLost as lost:
        if not lost.reader_left:
            print(f"{prog}: stdout cannot be written: {lost}.", file=sys.stderr)
        raise SystemExit(1) from None
    except Interrupted as stop:
        print(f"{prog}: {stop}", file=sys.stderr)
        raise SystemExit(stop.exit_code) from None
    except (UserError, CheckFailed) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UserError) else 1) from None


def outlive_readers() -> None:
    """Continue silently if stdout can no longer be written."""
    guard_standard_streams(outlive_readers=True)


def banner(*, n_envs: int, n_workers: int, start_method: str | None, unused_start_method: str | None = None) -> str:
    """The lines about environments and workers; n_workers 0: the trainer's process steps the environments.

    unused_start_method: the configured start method, if there are no workers.

    >>> print(banner(n_envs=8, n_workers=2, start_method="forkserver"))
    🚀 Using 8 parallel environments for training
       Start method: forkserver · 2 workers
    >>> print(banner(n_envs=8, n_workers=0, start_method=None))
    🚀 Using 8 parallel environments for training
       Stepped in the trainer's process, without workers
    """
    environments = "1 environment" if n_envs == 1 else f"{n_envs} parallel environments"
    workers = counted(n_workers, "worker")
    here = "Stepped in the trainer's process, without workers"
    how = f"Start method: {start_method} · {workers}" if n_workers else here
    if unused_start_method is not None:
        how += f", so --parallel-start-method {unused_start_method} has no effect"
    return f"🚀 Using {environments} for training\n   {how}"


@contextmanager
def _modules_of_working_directory() -> Iterator[None]:
    """Allow imports from the working directory, as `python -m` does. It is last on the path, so a file there cannot
    replace an installed module."""
    added = not sys.flags.safe_path and "" not in sys.path
    if added:
        sys.path.append("")
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's module may have removed it
            if added:
                sys.path.remove("")


def _require_working_directory() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("The working directory was deleted; change to one that exists.") from None
