"""Files are read if regular and within limits, written whole, followed as they grow, and locked by one process."""

import json
import os
import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from ml_pipeline.dashboard.curves.equity_tail import EquityTail
from ml_pipeline.dashboard.curves.metrics_columns import MetricsColumns
from ml_pipeline.dashboard.files import MetricsTail
from ml_pipeline.runtime import files
from ml_pipeline.runtime.files import (
    FileIdentity,
    GrowingFile,
    alone,
    only_regular,
    open_regular,
    path_inside,
    read_regular,
    written_whole,
)
from ml_pipeline.service.commands.logs import RunOutput


def test_a_file_and_a_link_to_one_are_opened(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"text"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_whatever_else_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    descriptors = len(os.listdir("/dev/fd"))
    for name, error in (("pipe", "not a regular file"), ("folder", "Is a directory"), ("link", "not a regular file")):
        with pytest.raises(OSError, match=error):
            open_regular(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")
    assert len(os.listdir("/dev/fd")) == descriptors


def test_links_are_refused_where_they_are_not_to_be_followed(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="link"):
        open_regular(tmp_path / "link", follow_links=False)


def test_a_file_that_is_too_large_is_refused_and_not_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "file").write_bytes(b"0123")
    assert read_regular(tmp_path / "file", most_bytes=4) == b"0123"
    with pytest.raises(OSError, match=r"it is larger than .* MB"):
        read_regular(tmp_path / "file", most_bytes=3)
    with pytest.raises(OSError, match=r"it is larger than 1 MB"):
        read_regular(tmp_path / "sparse", most_bytes=1_000_000)


def test_another_file_or_another_content_is_another_identity(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = FileIdentity.of(path.stat())
    assert FileIdentity.of(path.stat()) == first
    path.write_bytes(b"three")
    assert FileIdentity.of(path.stat()) != first


@pytest.mark.parametrize("name", ["trial-0001", "trial-0001-seed-1", "Jahr 2026", "ö", ".hidden", "x" * 255])
def test_a_name_of_one_component_is_a_path_in_the_folder(tmp_path, name):
    assert path_inside(tmp_path, name) == tmp_path / name


HOSTILE = ["", ".", "..", "../victim", "/etc", "a/b", "a/", "a/../b", "a\\b", "..\\b", "C:b", "a\0b", "x" * 256]


@pytest.mark.parametrize("name", [*HOSTILE, "\ud800", None, 3, ["a"], b"a", {"a": 1}])
def test_whatever_else_others_wrote_as_a_name_is_refused(tmp_path, name):
    assert path_inside(tmp_path, name) is None


def test_a_link_in_the_folder_is_refused_for_it_leads_elsewhere(tmp_path):
    (tmp_path / "inside").symlink_to(tmp_path.parent)
    assert path_inside(tmp_path, "inside") is None


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_only_a_regular_file_is_made_or_grows(tmp_path, monkeypatch):
    with open(tmp_path / "file", "a", opener=only_regular) as file:
        file.write("one")
    with open(tmp_path / "file", "a", opener=only_regular) as file:
        file.write("two")
    assert (tmp_path / "file").read_text() == "onetwo"
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name in ("pipe", "socket", "/dev/null"):
            for mode in ("a", "r"):
                with pytest.raises(OSError, match="it is not a regular file"):
                    open(name, mode, opener=only_regular)  # noqa: SIM115


def test_the_new_file_takes_the_place_of_the_old_one_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with written_whole(path, "w", encoding="utf-8") as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write():
        with written_whole(path, "w") as file:
            file.write("new")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a.txt.tmp").symlink_to(tmp_path / "precious")
    with written_whole(tmp_path / "a.txt", "w") as file:
        file.write("new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "a.txt").read_text() == "new"


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


def test_whoever_waited_for_the_lock_keeps_out_those_who_come_later(tmp_path, monkeypatch):
    opened, lock, entered = threading.Event(), files._lock, []

    def lock_and_tell(descriptor, deadline):
        opened.set()
        lock(descriptor, deadline)

    def wait_for_it():
        with alone(tmp_path / "lock"):
            entered.append((tmp_path / "lock").exists())  # what others would lock

    waiting = threading.Thread(target=wait_for_it)
    with alone(tmp_path / "lock"):
        monkeypatch.setattr(files, "_lock", lock_and_tell)
        waiting.start()
        assert opened.wait(30)
        assert entered == []
    waiting.join(30)
    assert entered == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_wait_with_an_end_ends(tmp_path):
    with alone(tmp_path / "lock"), pytest.raises(TimeoutError), alone(tmp_path / "lock", timeout_s=0.05):
        raise AssertionError("two at the same time")
    with alone(tmp_path / "lock", timeout_s=0.05):
        assert (tmp_path / "lock").exists()
