"""A process that computes a user's features from the bars so far, and holds no later ones.

It is started by `blind_runs`, reads requests from standard input and answers on standard output, both as pickles. What
a function remembers of earlier calls is then of earlier bars as well. Files that it opens are noted: they may hold
later bars.
"""

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CODE = {".py", ".pyc", ".pyd", ".so", ".pyi", ".zip", ".pth", ".dll", ".dylib"}
# Folders of the machine and of installed packages, which hold no market data.
_OF_THE_MACHINE = ("/proc", "/sys", "/dev", "/etc", "/usr/lib", "/usr/share", sys.prefix, sys.base_prefix)


class _OpenedFiles:
    """Notes the data files that are opened for reading, and the network."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.watching = False
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "socket.connect":
            self.seen.add("the network")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(arguments[0])).absolute()
            if path.suffix not in _CODE and not str(path).startswith(_OF_THE_MACHINE) and path.is_file():
                self.seen.add(str(path))


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
            pickle.dump((values, sorted(opened.seen)), answers)
            answers.flush()


if __name__ == "__main__":
    sys.path[:] = pickle.load(sys.stdin.buffer)
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    serve(sys.stdin.buffer, private)
