"""What every reader of a growing file must do: read on where it grew, and anew where it is another file."""

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from ml_pipeline.dashboard.curves.equity_tail import EquityTail
from ml_pipeline.dashboard.curves.metrics_columns import MetricsColumns
from ml_pipeline.dashboard.metrics_tail import MetricsTail
from ml_pipeline.runtime.growing_file import GrowingFile
from ml_pipeline.service.commands.logs import RunOutput


class Tail(ABC):
    """A reader, and how numbers are written into its file."""

    name: str
    header = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def line(self, value: float) -> str: ...

    @abstractmethod
    def read(self) -> list[float]:
        """All numbers of the file as it is now."""

    def write(self, *values: float, mode: str = "a") -> None:
        with self.path.open(mode) as file:
            file.write((self.header if mode == "w" else "") + "".join(map(self.line, values)))


class OfMetricsTail(Tail):
    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader = MetricsTail(path)

    def line(self, value: float) -> str:
        return json.dumps({"a": value}) + "\n"

    def read(self) -> list[float]:
        self.reader.read()
        return [row["a"] for row in self.reader.rows]


class OfMetricsColumns(OfMetricsTail):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.columns = MetricsColumns(path)

    def read(self) -> list[float]:
        self.columns.refresh()
        return self.columns.column("a").tolist()


class OfEquityTail(Tail):
    name = "ledger.csv"
    header = "time,equity\n"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader = EquityTail(path)

    def line(self, value: float) -> str:
        return f"2024-01-01 00:00:00,{value}\n"

    def read(self) -> list[float]:
        return self.reader.read()[1].tolist()


class OfRunOutput(Tail):
    """What it was given is gone: the numbers are those of one file, which begins with its smallest."""

    name = "run.log"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader = RunOutput(path.parent)
        self.told: list[float] = []

    def line(self, value: float) -> str:
        return f"{value}\n"

    def read(self) -> list[float]:
        new = [float(line) for text in self.reader._new(last=False) for line in text.splitlines()]
        self.told = new if new and new[0] in (1.0, 5.0) else self.told + new
        return self.told


@pytest.fixture(params=[OfMetricsTail, OfMetricsColumns, OfEquityTail, OfRunOutput], ids=lambda kind: kind.__name__)
def tail(request, tmp_path):
    return request.param(tmp_path / request.param.name)


def test_a_file_that_grew_is_read_on(tail):
    tail.write(1.0, 2.0, mode="w")
    assert tail.read() == [1.0, 2.0]
    tail.write(3.0)
    assert tail.read() == [1.0, 2.0, 3.0]
    assert tail.read() == [1.0, 2.0, 3.0]


def test_a_torn_line_waits_for_its_rest(tail):
    tail.write(1.0, 2.0, mode="w")
    whole = tail.path.read_bytes()
    tail.path.write_bytes(whole[:-2])
    assert tail.read() == [1.0]
    with tail.path.open("ab") as file:
        file.write(whole[-2:])
    assert tail.read() == [1.0, 2.0]


def test_another_file_in_its_place_is_read_anew(tail):
    tail.write(1.0, 2.0, mode="w")
    tail.read()
    other = tail.path.with_name("other")
    tail.path.rename(other)
    tail.write(5.0, 6.0, 7.0, mode="w")
    assert tail.read() == [5.0, 6.0, 7.0]


@pytest.mark.parametrize("values", [(5.0, 6.0, 7.0), (5.0, 6.0)], ids=["longer", "as_long"])
def test_a_file_written_anew_under_the_same_inode_is_read_anew(tail, values):
    """As the system gives it to a file that takes the place of a deleted one."""
    tail.write(1.0, 2.0, mode="w")
    tail.read()
    inode = tail.path.stat().st_ino
    tail.write(*values, mode="w")
    os.utime(tail.path, ns=(0, 1))
    assert tail.path.stat().st_ino == inode
    assert tail.read() == [*values]


def test_a_file_that_was_cut_and_grew_again_is_read_anew(tail):
    tail.write(1.0, 2.0, 3.0, mode="w")
    tail.read()
    tail.write(5.0, mode="w")
    assert tail.read() == [5.0]
    tail.write(6.0)
    assert tail.read() == [5.0, 6.0]


def chunks_of(path: Path, growing: GrowingFile, *, last: bool = False) -> list[bytes]:
    with path.open("rb") as file:
        growing.goes_on(file)
        return list(growing.chunks(file, last=last))


def test_chunks_end_with_a_line_and_a_longer_line_comes_in_parts(tmp_path):
    path, growing = tmp_path / "file", GrowingFile(chunk_bytes=4)
    path.write_bytes(b"a\nb\ncdefgh\nij")
    assert chunks_of(path, growing) == [b"a\nb\n", b"cdef", b"gh\n"]
    assert chunks_of(path, growing) == []
    assert chunks_of(path, growing, last=True) == [b"ij"]
    assert chunks_of(path, growing, last=True) == []


def test_of_much_that_was_added_the_end_is_read(tmp_path):
    path, growing = tmp_path / "file", GrowingFile(most_bytes=4)
    path.write_bytes(b"a\nb\nc\nd\n")
    assert chunks_of(path, growing) == [b"c\nd\n"]
