"""New run folders: one each, also for runs that begin in the same second."""

import shutil
import sys
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs import folder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "runs_folder", lambda: tmp_path / "checkpoints")
    monkeypatch.setattr(folder.time, "strftime", lambda form: "20260102-030405")
    return tmp_path / "checkpoints"


def test_runs_of_the_same_second_get_folders_of_their_own(runs):
    names = [folder.make_new_folder("trading").name for _ in range(3)]
    assert names == ["trading-20260102-030405", "trading-20260102-030405-2", "trading-20260102-030405-3"]
    assert sorted(path.name for path in runs.iterdir()) == names


def test_a_folder_that_cannot_be_made_is_one_sentence(runs):
    runs.touch()
    with pytest.raises(UserError, match=r"The folder \S+ cannot be made: Not a directory; choose another"):
        folder.make_new_folder("trading")


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"The report cannot be written to \S+: Not a directory; choose another"),
        folder.report_folder(tmp_path / "file" / "report"),
    ):
        pass


def test_what_resumes_a_run_is_as_short_as_the_working_directory_allows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder.resume_command(tmp_path / "runs" / "a").endswith("ml_pipeline.train_ppo --resume runs/a")
    assert folder.resume_command(Path("/elsewhere/a")).endswith("--resume /elsewhere/a")


@pytest.mark.parametrize(
    ("active", "typed"),
    [(".venv/bin/python", "python"), ("usr/bin/python", ".venv/bin/python3"), (None, ".venv/bin/python3")],
)
def test_what_resumes_a_run_works_whichever_python_is_active(active, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python3"))
    monkeypatch.setattr(shutil, "which", lambda name: active and str(tmp_path / active))
    assert folder.resume_command(tmp_path / "a") == f"{typed} -m ml_pipeline.train_ppo --resume a"
