"""Which folders hold runs, and what runs are called."""

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
    for name, sentence in (("gone", "is not there"), ("file", "is no folder")):
        with pytest.raises(UserError, match=f"{name} {sentence}; name a folder of runs"):
            check_folder(tmp_path / name)
    check_folder(tmp_path)
