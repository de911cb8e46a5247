"""Command: compile in advance, on all cores, the kernels that the first trainings on this machine would compile.

ml-pipeline compile                          # everything
ml-pipeline compile perceptron trading       # what `ml-pipeline train` needs; `make install` does this
"""

import logging
import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.kinds_to_compile import KINDS
from ml_pipeline.runtime.code_cache import can_keep_code, recorded_compilations
from ml_pipeline.runtime.cores import usable_cores

PROG = "compile"
_FAILED = "failed, "
Kind = Literal["perceptron", "trading", "memory", "perceptron-box", "memory-box", "trading-stops", "trading-batched"]
assert get_args(Kind) == tuple(KINDS)


@dataclass(frozen=True)
class CompileConfig:
    """The kernels to compile."""

    kinds: Annotated[tyro.conf.Positional[tuple[Kind, ...]], tyro.conf.arg(metavar="[KIND ...]")] = ()
    """What to compile; none: everything. perceptron, memory: networks without and with a recurrent memory; -box: for
    continuous actions. trading: the trading environment; -stops: with stop loss and take profit."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The settings of this command's flags."""

    compile: CompileConfig = field(default_factory=CompileConfig)


class Part(NamedTuple):
    """A kernel that one process compiles."""

    kind: str
    name: str


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Compile, and print one line per part; return 0, even if numba is not installed.

    Exits with one sentence: code 2 if the code cannot be saved, 1 if a part does not compile.
    """
    with entry(prog):
        config = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["compile"].sentence).compile
        if find_spec("numba") is None:
            print("There is nothing to compile, because numba is not installed; training runs without it, but slower.")
            return 0
        if not can_keep_code():
            raise UserError(
                f"Machine code cannot be saved: neither {Path(__file__).parent} nor the user's cache folder is "
                "writable; set NUMBA_CACHE_DIR to a writable folder, here and for trainings."
            )
        parts = [Part(kind, name) for kind in dict.fromkeys(config.kinds or KINDS) for name in KINDS[kind]]
        failed = False
        with closing(_compiled(parts)) as results:
            for part, result in results:
                print(f"{part.kind}, {part.name}: {result}", flush=True)
                failed = failed or result.startswith(_FAILED)
        if failed:
            raise CheckFailed("Some parts did not compile; trainings will try again, or run without them.")
    return 0


def _compiled(parts: Sequence[Part]) -> Generator[tuple[Part, str], None, None]:
    """Compile one part per core at a time; yield each part with its result. Closing the generator kills the rest."""
    context = multiprocessing.get_context("spawn")
    waiting = list(parts)
    going: dict[Any, tuple[Part, SpawnProcess]] = {}
    try:
        while waiting or going:
            while waiting and len(going) < max(1, int(usable_cores())):
                part = waiting.pop(0)
                receiving, sending = context.Pipe(duplex=False)
                process = context.Process(target=_compile, args=(KINDS[part.kind][part.name], sending), daemon=True)
                process.start()
                sending.close()
                going[receiving] = part, process
            ready = wait(list(going))
            for end in [each for each in going if each in ready]:
                part, process = going.pop(end)
                try:
                    result = end.recv()
                except EOFError:
                    result = f"{_FAILED}its process ended."
                process.join()
                end.close()
                yield part, result
    finally:
        for end, (_, process) in going.items():
            process.kill()
            process.join()
            end.close()


def _compile(work: Callable[[], None], connection: Connection) -> None:
    """Compile one part, in a separate process that Ctrl-C ends silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    logging.disable(logging.WARNING)  # hides notes that compiling takes a while; the printed lines have the time
    warnings.simplefilter("error", UserWarning)  # the warning that numba does not work here
    begin = time.perf_counter()
    try:
        with recorded_compilations() as compilations:
            work()
    except Exception as error:  # numba raises many kinds
        said = next(iter(str(error).splitlines()), "")  # numba's messages fill a page
        connection.send(f"{_FAILED}{type(error).__name__}: {said}")
        return
    connection.send(f"compiled in {time.perf_counter() - begin:.1f} s" if compilations else "on disk already")
