"""Which folders hold runs, and what runs are called."""

import errno
import os
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folders import check_folder, is_run_folder, run_folders, run_name


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"state.json"}, True),
        ({"latest.pt"}, True),
        ({"config.yaml", "metrics.jsonl"}, True),
        ({"config.yaml"}, False),
        ({"metrics.jsonl"}, False),
        (set(), False),
    ],
)
def test_what_counts_as_a_run_folder(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).touch()
    assert is_run_folder(tmp_path) is expected


def test_runs_are_named_from_the_root(tmp_path):
    for name in ("one", "fit/seed0", "fit/seed1", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "state.json").touch()
    names = [run_name(tmp_path, folder) for folder in run_folders(tmp_path)]
    assert names == ["fit/seed0", "fit/seed1", "one"]
    assert [run_name(each, each) for each in run_folders(tmp_path / "one")] == ["one"]


def test_a_folder_that_is_not_there_has_no_runs_and_is_refused_where_it_is_named(tmp_path):
    assert list(run_folders(tmp_path / "gone")) == []
    (tmp_path / "file").touch()
    for name, sentence in (("gone", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(UserError, match=f"{name} {sentence}; name a folder of runs"):
            check_folder(tmp_path / name)
    check_folder(tmp_path)


def test_folders_that_cannot_be_looked_at_are_named_and_the_others_are_found(tmp_path, monkeypatch):
    for name in ("one", "group/inner", "locked"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "notes.txt").touch()
    for name in ("one", "group/inner"):
        (tmp_path / name / "state.json").touch()
    for link in ("self", "group/self"):
        (tmp_path / link).symlink_to("self")
    (tmp_path / "dangling").symlink_to("nothing")
    real = os.scandir

    def listed(path):  # no permission keeps root out, who may run the tests
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", listed)
    refused: dict[Path, str] = {}
    found = list(run_folders(tmp_path, refused=refused))
    assert found == [tmp_path / "group" / "inner", tmp_path / "one"]
    assert refused == {
        tmp_path / "self": os.strerror(errno.ELOOP),
        tmp_path / "group" / "self": os.strerror(errno.ELOOP),
        tmp_path / "locked": "Permission denied",
    }
    assert list(run_folders(tmp_path)) == found
