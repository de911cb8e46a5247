"""A file is the old one or the new one, never half of it."""

import os

import pytest

from ml_pipeline.runtime.whole_file import written_whole


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
