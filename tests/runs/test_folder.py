"""New run folders: one each, also for runs that begin in the same second."""

from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs import folder
from ml_pipeline.runs.folder import report_folder
from ml_pipeline.runs.folder_claim import FolderClaim

REPOSITORY = Path(__file__).resolve().parents[2]


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
    with pytest.raises(
        UserError, match=r"The folder \S+ cannot be created: Not a directory; run in another folder, or"
    ):
        folder.make_new_folder("trading")


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"The report cannot be written to \S+: Not a directory; choose another"),
        folder.report_folder(tmp_path / "file" / "report"),
    ):
        pass


def test_runs_are_written_where_one_is_but_within_the_repository_to_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder.runs_folder() == tmp_path / "checkpoints"
    for place in (REPOSITORY, REPOSITORY / "ml_pipeline"):
        monkeypatch.chdir(place)
        assert folder.runs_folder() == REPOSITORY / "checkpoints"


def test_an_installed_copy_writes_where_one_is_even_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "ml_pipeline" / "runs" / "folder.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert folder.runs_folder() == tmp_path / "deeper" / "checkpoints"


def test_a_working_directory_that_was_deleted_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(UserError, match="The working directory was deleted"):
        folder.runs_folder()


def test_a_link_among_the_files_of_a_run_is_refused_and_written_through_by_nobody(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").symlink_to(precious)
    for claim in (lambda: FolderClaim(run), lambda: report_folder(run).__enter__()):
        with pytest.raises(UserError, match=r"report\.html is a link to .*precious, .* remove it"):
            claim()
    assert precious.read_text() == "mine"
