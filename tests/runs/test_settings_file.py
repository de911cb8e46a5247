"""A run folder remembers the settings file that it was started with, and is found by its content."""

import json
from pathlib import Path

import pytest

from ml_pipeline.runs.settings_file import (
    STARTED_WITH_FILE,
    StartedWith,
    read_settings_file,
    runs_elsewhere,
    started_with,
)


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "state"))
    return tmp_path


def start_of(path, **flags):
    return StartedWith(file=read_settings_file(path)[1]).with_flags(**flags)


def recorded(folder, start):
    folder.mkdir(parents=True)
    start.record(folder)
    (folder / "latest.pt").write_bytes(b"")
    return folder


def test_content_is_the_same_in_another_layout_and_under_another_name(in_tmp):
    Path("a.json").write_text('{"seed": 1, "data": "prices.csv", "training": {"gamma": 0.9}}')
    Path("b.yaml").write_text("# as before\ntraining: {gamma: 0.9}\nseed: 1\ndata: prices.csv\n")
    Path("c.yaml").write_text("training: {gamma: 0.9}\nseed: 2\ndata: prices.csv\n")
    a, b, c = (read_settings_file(Path(name))[1] for name in ("a.json", "b.yaml", "c.yaml"))
    assert a.is_same(b)
    assert not a.is_same(c)


def test_the_same_file_in_another_folder_means_other_data(in_tmp, monkeypatch):
    path = in_tmp / "a.json"
    path.write_text('{"data": "prices.csv"}')
    here = read_settings_file(path)[1]
    (in_tmp / "other").mkdir()
    monkeypatch.chdir(in_tmp / "other")
    assert not here.is_same(read_settings_file(path)[1])


def test_a_folder_remembers_file_and_flags_and_a_resumption_adds_its_own(in_tmp):
    Path("a.json").write_text('{"seed": 1}')
    folder = recorded(in_tmp / "run", start_of(Path("a.json"), hidden_sizes=(8, 8), checkpoint_dir=Path("run")))
    StartedWith().with_flags(learning_rate=1e-4).record(folder)
    found = started_with(folder)
    assert found.file.path == str(in_tmp / "a.json")
    assert found.shown_flags() == "--hidden-sizes 8 8 --learning-rate 0.0001"
    Path("b.json").write_text('{"seed": 1, "gamma": 0.9}')
    start_of(Path("b.json")).record(folder)
    assert (started_with(folder).file.path, started_with(folder).flags) == (str(in_tmp / "b.json"), {})


def test_the_settings_that_a_service_keeps_in_the_folder_are_not_what_it_was_started_with(in_tmp):
    Path("a.json").write_text('{"seed": 1}')
    folder = recorded(in_tmp / "run", start_of(Path("a.json")))
    (folder / "config.yaml").write_text("seed: 1\ngamma: 0.9\n")
    start_of(folder / "config.yaml", checkpoint_dir=folder).record(folder)
    assert started_with(folder).file.path == str(in_tmp / "a.json")


def test_runs_elsewhere_are_found_until_they_are_gone(in_tmp):
    Path("a.json").write_text("{}")
    elsewhere = recorded(in_tmp / "out" / "mine", start_of(Path("a.json")))
    gone = recorded(in_tmp / "out" / "gone", start_of(Path("a.json")))
    recorded(in_tmp / "checkpoints" / "x", start_of(Path("a.json")))
    assert runs_elsewhere(read_settings_file(Path("a.json"))[1]) == [elsewhere, gone]
    (gone / "latest.pt").unlink()
    (gone / STARTED_WITH_FILE).unlink()
    recorded(in_tmp / "out" / "new", start_of(Path("a.json")))
    listed = (in_tmp / "state" / "ml_pipeline" / "runs-elsewhere.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in listed] == [str(elsewhere), str(in_tmp / "out" / "new")]


def test_a_run_elsewhere_is_not_found_by_another_file_of_equal_content(in_tmp):
    Path("a.json").write_text("{}")
    Path("b.json").write_text("{}")
    recorded(in_tmp / "out" / "mine", start_of(Path("a.json")))
    assert runs_elsewhere(read_settings_file(Path("b.json"))[1]) == []


@pytest.mark.parametrize("content", ["", "[", "{}", '{"file": {"path": 3}, "flags": {}}', '{"file": [], "flags": 1}'])
def test_what_holds_no_start_is_as_if_it_were_not_there(in_tmp, content):
    (in_tmp / STARTED_WITH_FILE).write_text(content)
    assert started_with(in_tmp) is None
