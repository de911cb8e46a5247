"""A regular file is opened; whatever else lies there is refused at once."""

import os
import socket

import pytest

from ml_pipeline.runtime.regular_file import FileIdentity, only_regular, open_regular, path_inside, read_regular


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
    for name, error in (("pipe", "no regular file"), ("folder", "Is a directory"), ("link", "no regular file")):
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
                with pytest.raises(OSError, match="it is no regular file"):
                    open(name, mode, opener=only_regular)  # noqa: SIM115
