"""The equity of a ledger.csv that grows: only what was added is read."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.dashboard.run_files import open_file
from ml_pipeline.runtime.regular_file import has_grown

_CHUNK = 1 << 24
_COMPARED = 256  # bytes that were read last


class EquityTail:
    """times: datetime64[ns] (n,), equity: float64 (n,), of the whole rows that were written so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._file: object = None
        self._at = 0
        self._last_bytes = b""  # what lies before it
        self._columns: tuple[int, int] | None = None
        self._times: list[NDArray[np.datetime64]] = []
        self._equity: list[NDArray[np.float64]] = []

    def read(self) -> tuple[NDArray[np.datetime64], NDArray[np.float64]]:
        """(times, equity); empty where there is no ledger yet. A row that cannot be read is left out."""
        file = open_file(self._path)
        if file is None:
            self._forget()
        else:
            with file:
                found = os.fstat(file.fileno())
                if self._file != found.st_ino or not has_grown(file, offset=self._at, before=self._last_bytes):
                    self._forget()
                    self._file = found.st_ino
                file.seek(self._at)
                while data := file.read(_CHUNK):
                    whole = data.rfind(b"\n") + 1
                    if not whole:
                        break
                    self._take(data[:whole].decode("utf-8", errors="replace").splitlines())
                    self._at += whole
                    self._last_bytes = data[max(whole - _COMPARED, 0) : whole]
                    file.seek(self._at)
        if not self._times:
            return np.empty(0, dtype="datetime64[ns]"), np.empty(0)
        self._times, self._equity = [np.concatenate(self._times)], [np.concatenate(self._equity)]
        return self._times[0], self._equity[0]

    def _take(self, lines: list[str]) -> None:
        if self._columns is None:
            names = lines[0].split(",")
            if not {"time", "equity"} <= {*names}:
                return
            self._columns = names.index("time"), names.index("equity")
            lines = lines[1:]
        time, equity = self._columns
        last = max(self._columns)
        times, values = [], []
        for line in lines:
            cells = line.split(",", last + 1)
            try:
                stamp, value = np.datetime64(cells[time], "ns"), float(cells[equity])
            except (ValueError, IndexError):
                continue
            if not np.isnat(stamp):
                times.append(stamp)
                values.append(value)
        self._times.append(np.array(times, dtype="datetime64[ns]"))
        self._equity.append(np.array(values))
