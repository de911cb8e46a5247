import os

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.files import NotThere, find_run, open_file, read_text
from tests.dashboard.run_folders import make_run

OUTSIDE = [
    "", ".", "..", "../secret", "a/../../secret", "/etc", "//etc", "a/b/c", "a/", "/a", "a\0", "..\\secret", ".hidden",
    "a/.hidden", "%2e%2e", "x" * 5000, "a/..", "\udcff",
]  # fmt: skip


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path, "secret")
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path / "runs", "seeds/seed0")
    make_run(tmp_path / "runs", ".hidden")
    return tmp_path / "runs"


def test_runs_are_found_by_their_names(root):
    assert find_run(root, "a") == root / "a"
    assert find_run(root, "seeds/seed0") == root / "seeds" / "seed0"
    assert find_run(root / "a", "a") == root / "a"


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leaves_the_folder_of_runs(root, name):
    with pytest.raises(NotThere, match="has no run"):
        find_run(root, name)


def test_a_root_that_is_a_run_has_no_other(root):
    with pytest.raises(NotThere):
        find_run(root / "a", "../a")


def test_a_link_out_of_the_folder_of_runs_is_not_followed(root, tmp_path):
    (root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(NotThere, match="is a link to a place outside of"):
        find_run(root, "link")
    (root / "inside").symlink_to(root / "a")
    assert find_run(root, "inside") == root / "inside"


def test_only_plain_files_are_opened(root, tmp_path):
    (root / "a" / "report.html").symlink_to("/etc/hostname")
    os.mkfifo(root / "a" / "run.log")
    assert open_file(root / "a" / "report.html") is None
    assert open_file(root / "a" / "run.log") is None  # and it was not waited for a writer
    assert open_file(root / "a") is None
    assert open_file(root / "a" / "nothing") is None


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(root):
    (root / "a" / "run.log").write_text("x")
    (root / "a" / "run.log").chmod(0)
    with pytest.raises(UserError, match="cannot be read"):
        open_file(root / "a" / "run.log")


def test_a_log_is_read_from_its_end_and_followed(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    end = read_text(path, most=100)
    assert end.text.startswith("line 9")
    assert end.text.endswith("line 999\n")
    assert (end.end, end.size) == (path.stat().st_size, path.stat().st_size)
    with path.open("a") as file:
        file.write("torn")
    assert read_text(path, after=end.end, most=100).text == "torn"
    earlier = read_text(path, before=end.start, most=100)
    assert earlier.end == end.start
    assert earlier.text.splitlines()[-1] == f"line {1000 - len(end.text.splitlines()) - 1}"


def test_a_log_that_was_cut_is_read_from_its_end(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("new\n")
    assert read_text(path, after=1000) == ("new\n", 0, 4, 4)
    assert read_text(tmp_path / "nothing", after=3) == ("", 0, 0, 0)


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path):
    (tmp_path / "run.log").write_bytes(b"ok \xff\n")
    assert read_text(tmp_path / "run.log").text == "ok \ufffd\n"


def test_a_link_to_itself_is_no_run(tmp_path):
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(NotThere, match='has no run "self"'):
        find_run(tmp_path, "self")
