"""How paths are shown; the rest has doctests."""

from ml_pipeline.config.wording import shown_path


def test_a_path_is_shown_from_the_working_directory_where_it_lies_below_it(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert str(shown_path(tmp_path / "here" / "runs" / "a")) == "runs/a"
    assert shown_path(tmp_path) == tmp_path
    (tmp_path / "here").rmdir()
    assert shown_path(tmp_path / "here") == tmp_path / "here"
