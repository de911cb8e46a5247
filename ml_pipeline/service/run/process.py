"""The process of one run under the service: it waits for a go, takes over the run folder, and trains.

Until the go it has touched nothing. The service first writes down which process this is, then says go; where the
service ends before that, the pipe closes and the process ends. So a run that nobody wrote down never begins, and a
folder that still says "queued" was never touched.

python -m ml_pipeline.service.run.process is how it starts where it cannot be forked.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.exit_reason import last_words
from ml_pipeline.runs.folder import OUTPUT_FILE
from ml_pipeline.runs.folder_claim import record_end_for, record_starting
from ml_pipeline.runs.state import Status
from ml_pipeline.runs.stop import ON_REQUEST, take_stop_note
from ml_pipeline.runtime.files import only_regular
from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

GO = b"g"
PROG = "ml-pipeline train"
_TRAIN = "ml_pipeline.train_ppo"
"""The command that trains. Named, not imported: rooms below the commands know none of them."""
_BY_SIGNAL = 128  # and its number: the exit code of a command that a signal stopped


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """What to run. arguments: those of `ml-pipeline train`. environment: variables besides those of the service."""

    folder: str
    folder_of_work: str
    arguments: Sequence[str]
    environment: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def await_go(descriptor: int) -> bool:
    """Whether the go comes through this pipe; False where it closes instead. Closes our end."""
    try:
        return os.read(descriptor, 1) == GO
    finally:
        os.close(descriptor)


def run(order: RunOrder) -> int:
    """Train as the order says, with output in the folder's output.log; return the exit code of the command."""
    folder = Path(order.folder)
    exit_at_once_on_signals(PROG)
    _redirect(folder / OUTPUT_FILE)
    try:
        record_starting(folder)
    except UserError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return 2
    code = 1
    try:
        os.environ.update(order.environment)
        os.chdir(order.folder_of_work)
        code = import_module(_TRAIN).main(list(order.arguments), prog=PROG)
    except FileNotFoundError as error:
        if error.filename != order.folder_of_work:
            raise
        sys.stderr.write(f"{PROG}: The folder it was submitted in is gone: {order.folder_of_work}.\n")
        code = 2
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        if code:  # before the run had claimed its folder, which else knows better
            with suppress(UserError, OSError):
                status: Status = "stopped" if code > _BY_SIGNAL else "failed"
                words = last_words(folder / OUTPUT_FILE)
                reason = ON_REQUEST if status == "stopped" and take_stop_note(folder) else words
                record_end_for(folder, status, reason or f"It ended with exit code {code}.")
    return code


def _redirect(output: Path) -> None:
    """Lead stdin to nothing, and stdout and stderr to the end of a file; to nothing where that cannot be opened."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        target = only_regular(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        target = nothing
    for descriptor, source in ((0, nothing), (1, target), (2, target)):
        os.dup2(source, descriptor)
    for opened in {nothing, target} - {0, 1, 2}:
        os.close(opened)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, encoding="utf-8", errors="replace")


def _main() -> int:
    """Started with the order on the command line, and the pipe of the go as stdin."""
    (text,) = sys.orig_argv[-1:]
    order = RunOrder(**json.loads(text))
    if os.name == "posix":
        with suppress(OSError):  # it leads a session already
            os.setsid()
    return run(order) if await_go(os.dup(0)) else 0


if __name__ == "__main__":
    sys.exit(_main())
