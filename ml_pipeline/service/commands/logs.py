"""Command: print the log of a run, and follow it if asked.

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
    """The log to print."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the first characters of the id, or the run folder. If several runs match, the newest is used."""

    follow: bool = False
    """Print new lines as they appear, until the run ends."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The flags of the command."""

    logs: LogsConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the log; return 0, or exit with code 2 and an error message if there is no such run."""
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
    """The log of the run in a folder: run.log or, before that exists, output.log of a run of the service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, GrowingFile] = {}  # files read so far

    def texts(self, *, follow: bool) -> Iterator[str]:
        """The log in parts, and finally the error of a failed run. follow: continue until the run has ended."""
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
        """New text since the previous call, in complete lines. last: also an incomplete last line."""
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
        """The end of the output and the reason, unless already printed."""
        told = tail(self._folder / LOG_FILE) if LOG_FILE in self._files else tail(self._folder / OUTPUT_FILE)
        output = tail(self._folder / OUTPUT_FILE).strip() if LOG_FILE in self._files else ""
        if output and not _is_told(without_program(output), f"{told}\n{state.reason}"):
            lines = without_program(output).splitlines()
            new = "\n".join(
                line for line in lines if not _is_told(line, told)
            )  # run.log has errors, but not their notes
            if new.strip():
                told += output
                yield f"\nThe end of {OUTPUT_FILE}:\n{new}\n"
        if state.reason and not _is_told(state.reason, told):
            yield f"\nIt failed: {state.reason}\n"


def _is_told(text: str, told: str) -> bool:
    """True if `told` contains the text, ignoring whitespace."""
    return " ".join(text.split()) in " ".join(told.split())


def printable(text: str) -> str:
    r"""The text without terminal control sequences. Each state of a progress bar becomes a separate line.

    >>> printable("\x1b[31mred\x1b[0m 10%\r20%\x07")
    'red 10%\n20%�'
    """
    text = _TERMINAL_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("\ufffd", text)
