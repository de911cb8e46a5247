"""A regular file is opened; whatever else lies there is refused at once."""

import os

import pytest

from ml_pipeline.runtime.regular_file import open_regular


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
