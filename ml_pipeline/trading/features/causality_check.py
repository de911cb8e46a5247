"""Recompute a user's features in a process that receives the bars one by one, and compare the values.

A function that looks ahead returns another value there, whether it uses later bars, their number, or state from an
earlier call.
"""

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.child import Child
from ml_pipeline.trading.features.causality_process import COLUMN, as_json
from ml_pipeline.trading.features.file_watch import FileWatch
from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.features.indicators import FeatureTable, bars_of, make_features
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.times import as_text

# Time for all runs together, in seconds; if it does not allow a run at every bar, bars are sampled.
_BUDGET_S = 6.0
# Overhead of a run, in seconds.
_PER_RUN_S = 2e-4
# If bars are sampled: how many of the first and last bars are used, and how many of the rest at least.
_AT_THE_ENDS = 150
_FEWEST_DRAWN = 40


@dataclass(frozen=True)
class BlindRuns:
    """The result of the check.

    n_cuts: number of bars at which the functions ran. opened: data files, programs, "the network", and modules that
    hold data. watched: whether the system reported what native code opened.
    """

    every_bar: bool
    n_cuts: int
    opened: tuple[str, ...]
    watched: bool


def refuse_what_sees_ahead(
    market: MarketData, names: Sequence[str], table: FeatureTable, *, budget_s: float = _BUDGET_S
) -> BlindRuns:
    """Compute the functions `names` from the bars so far, at every bar or at as many as `budget_s` allows.

    table: their values in use. Raises UserError, with the bar, if a value differs.
    """
    with _causality_process(names) as process:
        every_bar, n_cuts = True, 0
        for a, symbol in enumerate(market.symbols):
            columns = [table.columns.index(f"{symbol}:{name}") for name in names]
            used = table.values[market.tradable[:, a]][:, columns]
            functions = _Functions(symbol, names, bars_of(market, a), used)
            cuts = _cuts(process, functions, budget_s / len(market.symbols))
            _compare(process, functions, cuts)
            every_bar &= len(cuts) == len(functions.used)
            n_cuts += len(cuts)
        return BlindRuns(every_bar, n_cuts, process.all_opened(), process.is_watched)


class _Functions(NamedTuple):
    """The functions on one asset. bars: its T bars. used: their values in use, (T, number of functions)."""

    symbol: str
    names: Sequence[str]
    bars: Bars
    used: FloatArray


class _Process:
    """The parent's side of `causality_process`. opened: what the functions opened so far."""

    def __init__(self, child: Child, said: IO[bytes], watch: FileWatch | None) -> None:
        self._child = child
        self._said = said
        self._watch = watch
        self.opened: list[str] = []

    @property
    def is_watched(self) -> bool:
        return self._watch is not None and self._watch.is_watching

    def all_opened(self) -> tuple[str, ...]:
        return tuple(sorted({*self.opened, *(self._watch.seen if self._watch else ())}))

    def compute(self, bars: Bars, rows: slice, *, anew: bool, whole: bool) -> list[FloatArray | str]:
        """The values of each function for all bars so far or the last bar, or the reason for its failure.

        rows: bars since the last call. anew: whether they are the first bars.
        """
        came = {name: values[rows] for name, values in bars._asdict().items() if name != "columns"}
        came |= {(COLUMN + name): values[rows] for name, values in bars.columns.items()}
        self._child.send({"anew": anew, "whole": whole, "bars": {name: as_json(each) for name, each in came.items()}})
        event = self._child.next_event()
        if event is None or event.exit_code is not None:
            raise self._ended()
        self.opened = event.message["opened"]
        return [values if isinstance(values, str) else np.array(values) for values in event.message["values"]]

    def _ended(self) -> UserError:
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        last = said[-1].removeprefix("ml_pipeline.config.errors.UserError: ") if said else "its process ended"
        return UserError(f"A feature cannot be computed from the bars so far: {last.rstrip('.')}.")


@contextmanager
def _causality_process(names: Sequence[str]) -> Iterator[_Process]:
    module = "ml_pipeline.trading.features.causality_process"
    ours, theirs = socket.socketpair() if sys.platform == "linux" else (None, None)
    passed = [] if theirs is None else [theirs.fileno()]
    order = {"names": [*names], "passed": passed}
    with ExitStack() as stack:
        said = stack.enter_context(tempfile.TemporaryFile())  # a pipe would fill up with output of the functions
        watch = None if ours is None else FileWatch(ours)
        if watch is not None:
            stack.callback(watch.close)
        child = stack.enter_context(Child(module, order, purpose="features", log=said, pass_fds=passed))
        if theirs is not None:
            theirs.close()
        yield _Process(child, said, watch)


def _cuts(process: _Process, functions: _Functions, budget_s: float) -> NDArray[np.int64]:
    """Increasing numbers of bars after which to compute: all, or as many as the budget allows."""
    bars = functions.bars
    n = len(bars.close)
    few = min(n, 100)
    process.compute(bars, slice(0, few), anew=True, whole=False)  # which may import
    few_s = _seconds(lambda: process.compute(bars, slice(few, few), anew=False, whole=False))
    with np.errstate(all="ignore"):
        all_s = _seconds(lambda: [make_features(name)[0].compute(bars) for name in functions.names])
    each_s = few_s + max(all_s - few_s, 0.0) / 2 + _PER_RUN_S  # assumes that time grows linearly with the bars
    allowed = max(int(budget_s / each_s), _FEWEST_DRAWN)
    if allowed >= n:
        return np.arange(1, n + 1)
    ends = min(_AT_THE_ENDS, allowed // 3)
    drawn = np.random.default_rng(0).choice(n, size=allowed, replace=False) + 1
    return np.unique(np.concatenate([np.arange(1, ends + 1), np.arange(n - ends + 1, n + 1), drawn]))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _compare(process: _Process, functions: _Functions, cuts: NDArray[np.int64]) -> None:
    """Raise UserError if a value from the bars so far is not the one in use."""
    bars, whole_at = functions.bars, {int(cut) for cut in np.linspace(0, len(cuts) - 1, 5).astype(int)}
    sent = 0
    for i, cut in enumerate(cuts.tolist()):
        computed = process.compute(bars, slice(sent, cut), anew=i == 0, whole=i in whole_at)
        sent = cut
        begin = 0 if i in whole_at else cut - 1
        for name, known, values in zip(functions.names, functions.used[begin:cut].T, computed, strict=True):
            so_far = f"from only the bars up to {as_text(bars.times[cut - 1])}"
            if isinstance(values, str):  # it may fail before it has enough bars
                if not np.isnan(known).all():
                    raise UserError(f"Feature {functions.symbol}:{name} fails {so_far}: {values}")
                continue
            differs = ~((values == known) | (np.isnan(values) & np.isnan(known)))
            if differs.any():
                row = int(np.argmax(differs))
                raise UserError(
                    f"Feature {functions.symbol}:{name} uses later data (or is random): at "
                    f"{as_text(bars.times[begin + row])} it is {known[row]:g}, but {values[row]:g} {so_far}; compute "
                    "it only from each bar and earlier bars."
                )
