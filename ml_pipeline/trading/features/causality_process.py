"""A process that computes a user's features from the bars so far, and holds no later ones.

`causality_check` starts it. It reads requests from standard input and answers on standard output, both as pickles.
What a function remembers of earlier calls is then of earlier bars as well. What it reads from elsewhere is noted: it
may be later bars.
"""

import ast
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features.file_watch import PACKAGES, audited, watch_this_process

# Numbers that a module may write down; one with more may hold data.
_MOST_NUMBERS = 300
_MOST_TEXT = 10_000


class _OpenedFiles:
    """Notes the data files that are read, programs that are started, the network, and modules that hold data."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.watching = False
        self._read: set[str] = set()
        hook = audited(self.seen.add)
        sys.addaudithook(lambda event, arguments: hook(event, arguments) if self.watching else None)

    def look_at_modules(self) -> None:
        """Note modules of the user that hold many numbers or long texts, or no Python at all."""
        own = str(Path(__file__).resolve().parents[2])
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or path in self._read:
                continue
            self._read.add(path)
            if not path.startswith((own, *PACKAGES)) and (found := _data_in(Path(path))):
                self.seen.add(found)


def _data_in(path: Path) -> str | None:
    if path.suffix != ".py":
        return f"{path}, which is no Python"
    try:
        nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Constant)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return f"{path}, which cannot be read"
    numbers = sum(isinstance(node.value, int | float) for node in nodes)
    longest = max((len(node.value) for node in nodes if isinstance(node.value, str | bytes)), default=0)
    if numbers > _MOST_NUMBERS or longest > _MOST_TEXT:
        return f"{path}, which holds {numbers:,} numbers and a text of {longest:,} characters"
    return None


class _GrowingBars:
    """The bars of one asset that have arrived so far."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        self._size = 0

    def add(self, arrays: dict[str, NDArray[Any]], columns: dict[str, NDArray[Any]]) -> None:
        added = len(arrays["times"])
        for known, more in ((self._arrays, arrays), (self._columns, columns)):
            for name, values in more.items():
                room = known.get(name)
                if room is None or len(room) < self._size + added:
                    larger = np.empty(max(2 * (self._size + added), 64), dtype=values.dtype)
                    if room is not None:
                        larger[: self._size] = room[: self._size]
                    known[name] = room = larger
                room[self._size : self._size + added] = values
        self._size += added

    def bars(self) -> Any:
        from ml_pipeline.trading.features.formulas import Bars

        columns = {name: values[: self._size].copy() for name, values in self._columns.items()}
        # Copies: a function that writes into its bars changes none of the next call's.
        return Bars(**{name: values[: self._size].copy() for name, values in self._arrays.items()}, columns=columns)


def _computed(feature: Any, growing: _GrowingBars, *, whole: bool) -> NDArray[np.float64] | str:
    """The values, or why there are none."""
    bars = growing.bars()
    n = len(bars.close)
    try:
        with np.errstate(all="ignore"):
            computed = np.asarray(feature.compute(bars), dtype=np.float64)
    except Exception as error:
        return str(error)
    if computed.shape != (n,):
        return f"it must give one value per bar, ({n},), but gave {computed.shape}."
    return computed if whole else computed[-1:]


def serve(requests: Any, answers: Any) -> None:
    """Answer requests until there are no more: ("begin",), ("add", arrays, columns) or ("compute", whole)."""
    names: Sequence[str] = pickle.load(requests)
    opened = _OpenedFiles()
    from ml_pipeline.trading.features.indicators import make_features

    opened.watching = True  # importing the user's module may read a file as well
    features = [make_features(name)[0] for name in names]
    growing = _GrowingBars()
    while True:
        try:
            what, *arguments = pickle.load(requests)
        except EOFError:
            return
        if what == "begin":
            growing = _GrowingBars()
        elif what == "add":
            growing.add(*arguments)
        else:
            (whole,) = arguments
            values = [_computed(feature, growing, whole=whole) for feature in features]
            opened.look_at_modules()
            pickle.dump((values, sorted(opened.seen)), answers)
            answers.flush()


if __name__ == "__main__":
    sys.path[:], passed = pickle.load(sys.stdin.buffer)
    for descriptor in passed:  # before anything starts a thread, which would not be seen
        with socket.socket(fileno=descriptor) as to_parent:
            watch_this_process(to_parent)
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    serve(sys.stdin.buffer, private)
