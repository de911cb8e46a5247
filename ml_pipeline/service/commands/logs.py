"""Command: print what a run said, and go on with it as it says more.

ml-pipeline logs CartPole-v1-seed0-2026
ml-pipeline logs CartPole-v1-seed0-2026 --follow
"""

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.jobs.exit_reason import tail, without_program
from ml_pipeline.monitoring.console import entry
from ml_pipeline.monitoring.listener import LOG_FILE
from ml_pipeline.runs.folder import OUTPUT_FILE, root_of_runs
from ml_pipeline.runs.state import ENDED, RunState, readable_state
from ml_pipeline.runtime.files import GrowingFile, open_regular
from ml_pipeline.service.control import find_run

PROG = "logs"


@dataclass(frozen=True)
class LogsConfig:
    """Which log is printed."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the beginning of one, or its folder."""

    follow: bool = False
    """Go on until the run has ended."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    logs: LogsConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the log; exit with code 2, after one sentence, where there is no such run."""
    with entry(prog):
        logs = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["logs"].sentence).logs
        root = root_of_runs(logs.root)
        for text in RunOutput(find_run(root, logs.run, newest=True)).texts(follow=logs.follow):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


_LOOK_S = 0.2
_CHUNK_BYTES = 1 << 20
_TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


class RunOutput:
    """The log of the run in a folder: run.log, else output.log, which runs of a service have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, GrowingFile] = {}  # of which something was read

    def texts(self, *, follow: bool) -> Iterator[str]:
        """The log in parts. follow: all that comes until the run has ended. At last, what a failed run left to say."""
        while True:
            state = readable_state(self._folder)
            has_ended = state is None or state.status in ENDED
            yield from map(printable, self._new(last=has_ended))
            if has_ended or not follow:
                break
            time.sleep(_LOOK_S)
        if state is not None and state.status == "failed":
            yield from map(printable, self._failure(state))

    def _new(self, *, last: bool) -> Iterator[str]:
        """What came since the previous call, in whole lines. last: also a line that has no end."""
        name = LOG_FILE if (self._folder / LOG_FILE).exists() else OUTPUT_FILE
        growing = self._files.get(name) or GrowingFile(chunk_bytes=_CHUNK_BYTES)
        try:
            with open_regular(self._folder / name) as file:
                growing.goes_on(file)
                for data in growing.chunks(file, last=last):
                    self._files[name] = growing
                    yield data.decode(errors="replace")
        except OSError:
            return

    def _failure(self, state: RunState) -> Iterator[str]:
        """What was not told before: the end of the output, and the reason."""
        told = tail(self._folder / LOG_FILE) if LOG_FILE in self._files else tail(self._folder / OUTPUT_FILE)
        output = tail(self._folder / OUTPUT_FILE).strip() if LOG_FILE in self._files else ""
        if output and not _is_told(without_program(output), f"{told}\n{state.reason}"):
            lines = without_program(output).splitlines()
            new = "\n".join(
                line for line in lines if not _is_told(line, told)
            )  # run.log has errors, and not their notes
            if new.strip():
                told += output
                yield f"\nThe end of {OUTPUT_FILE}:\n{new}\n"
        if state.reason and not _is_told(state.reason, told):
            yield f"\nIt failed: {state.reason}\n"


def _is_told(text: str, told: str) -> bool:
    """Whether a text holds another one, however its lines are indented."""
    return " ".join(text.split()) in " ".join(told.split())


def printable(text: str) -> str:
    r"""Without what would colour a terminal, move its cursor or rename its window; what a progress bar drew over itself
    comes in lines of its own.

    >>> printable("\x1b[31mred\x1b[0m 10%\r20%\x07")
    'red 10%\n20%�'
    """
    text = _TERMINAL_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("\ufffd", text)
