"""A process that computes a user's features from the bars so far and has no later bars.

`causality_check` starts it and sends orders, each with the bars since the last order. So a function's memory of earlier
calls also holds only earlier bars. The process records what the functions read from elsewhere, which may be later bars.
"""

import ast
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.jobs.child import Parent, serve
from ml_pipeline.trading.features.file_watch import PACKAGES, audited, watch_this_process

# Most numbers, and longest text, in a module's source; a module with more may hold data.
_MOST_NUMBERS = 300
_MOST_TEXT = 10_000
COLUMN = "column:"
"""Prefix of the names of feature_* columns among the arrays of bars."""


class _OpenedFiles:
    """Records data files that are read, programs that are started, the network, and modules that hold data."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.watching = False
        self._read: set[str] = set()
        hook = audited(self.seen.add)
        sys.addaudithook(lambda event, arguments: hook(event, arguments) if self.watching else None)

    def look_at_modules(self) -> None:
        """Record modules of the user that hold many numbers or long texts, or are not Python."""
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
        return f"{path}, which is not Python"
    try:
        nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Constant)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return f"{path}, which cannot be read"
    numbers = sum(isinstance(node.value, int | float) for node in nodes)
    longest = max((len(node.value) for node in nodes if isinstance(node.value, str | bytes)), default=0)
    if numbers > _MOST_NUMBERS or longest > _MOST_TEXT:
        return f"{path}, which holds {numbers:,} numbers and a text of {longest:,} characters"
    return None


def as_json(values: NDArray[Any]) -> tuple[str, list[Any]]:
    """An array as it is sent in an order: its dtype and its numbers, with times as integers."""
    return values.dtype.str, (values.view(np.int64) if values.dtype.kind == "M" else values).tolist()


class _GrowingBars:
    """The bars of one asset that have arrived so far."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._size = 0

    def add(self, bars: Mapping[str, tuple[str, list[Any]]]) -> None:
        added = len(bars["times"][1])
        for name, (dtype, values) in bars.items():
            room = self._arrays.get(name)
            if room is None or len(room) < self._size + added:
                larger = np.empty(max(2 * (self._size + added), 64), dtype)
                if room is not None:
                    larger[: self._size] = room[: self._size]
                self._arrays[name] = room = larger
            room[self._size : self._size + added] = np.array(values, dtype)
        self._size += added

    def bars(self) -> Any:
        from ml_pipeline.trading.features.formulas import Bars

        # Copies, so that a function that writes into its bars does not change those of the next call.
        arrays = {name: values[: self._size].copy() for name, values in self._arrays.items()}
        columns = {name.removeprefix(COLUMN): arrays.pop(name) for name in [*arrays] if name.startswith(COLUMN)}
        return Bars(**arrays, columns=columns)


def _computed(feature: Any, growing: _GrowingBars, *, whole: bool) -> list[float] | str:
    """The values, or the reason for a failure."""
    bars = growing.bars()
    n = len(bars.close)
    try:
        with np.errstate(all="ignore"):
            computed = np.asarray(feature.compute(bars), dtype=np.float64)
    except Exception as error:
        return str(error)
    if computed.shape != (n,):
        return f"it must return one value per bar, ({n},), but returned {computed.shape}."
    return (computed if whole else computed[-1:]).tolist()


def main(parent: Parent) -> int:
    """Answer orders until the parent ends: first {"names", "passed"}, then {"anew", "whole", "bars"}."""
    first = parent.next_order()
    for descriptor in first["passed"]:
        with socket.socket(fileno=descriptor) as to_parent:
            watch_this_process(to_parent)
    opened = _OpenedFiles()
    from ml_pipeline.trading.features.indicators import make_features

    opened.watching = True  # importing the user's module may read a file as well
    features = [make_features(name)[0] for name in first["names"]]
    growing = _GrowingBars()
    while True:
        order = parent.next_order()
        if order["anew"]:
            growing = _GrowingBars()
        growing.add(order["bars"])
        values = [_computed(feature, growing, whole=order["whole"]) for feature in features]
        opened.look_at_modules()
        parent.tell(values=values, opened=sorted(opened.seen))


if __name__ == "__main__":
    serve(main)
