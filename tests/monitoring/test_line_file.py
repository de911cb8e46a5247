"""Files of lines lose nothing: they are never overwritten by accident, and a torn line never stays."""

import os

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.line_file import LineFile, read_lines


def test_a_line_can_be_read_before_the_file_is_closed(tmp_path):
    file = LineFile(tmp_path / "x", ["first"], replace=False)
    file.append(["second"])
    assert read_lines(tmp_path / "x") == ["first", "second"]
    file.close()
    file.close()


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "x").write_text("precious\n")
    with pytest.raises(UserError, match="is there already and would be lost; resume its run, or choose another folder"):
        LineFile(tmp_path / "x", replace=False)
    assert (tmp_path / "x").read_text() == "precious\n"


def test_a_run_that_wrote_nothing_but_its_first_lines_does_not_stand_in_the_way(tmp_path):
    LineFile(tmp_path / "x", ["header"], replace=False).close()
    LineFile(tmp_path / "x", ["header"], replace=False).close()
    assert read_lines(tmp_path / "x") == ["header"]


def test_replacing_leaves_the_given_lines_and_no_other_file(tmp_path):
    (tmp_path / "x").write_text("old\n")
    file = LineFile(tmp_path / "x", ["new"], replace=True)
    file.append(["newer"])
    file.close()
    assert (tmp_path / "x").read_text() == "new\nnewer\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_torn_last_line_is_left_out(tmp_path):
    (tmp_path / "x").write_bytes(b"whole\nto\xc3")  # cut within a character of two bytes
    assert read_lines(tmp_path / "x") == ["whole"]


def test_a_missing_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "x") == []


@pytest.mark.parametrize("replace", [True, False])
def test_a_folder_that_cannot_be_written_is_told_in_one_sentence(tmp_path, replace):
    path = tmp_path / "missing" / "x"
    with pytest.raises(UserError) as told:
        LineFile(path, replace=replace)
    reason = "No such file or directory; make room, or choose another folder."
    assert str(told.value) == f"{path} cannot be written: {reason}"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_told_in_one_sentence_and_closes_the_file(tmp_path):
    (tmp_path / "x").symlink_to("/dev/full")
    file = LineFile.__new__(LineFile)  # opening would replace the link
    file.path, file._file = tmp_path / "x", (tmp_path / "x").open("a")
    with pytest.raises(UserError, match="No space left on device; make room, or choose another folder"):
        file.append(["line"])
    file.close()


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_in_place_of_the_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe cannot be read: it is no regular file"):
        read_lines(tmp_path / "pipe")
