import io
import sys
from importlib import import_module

import pytest

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.monitoring.console import entry


@pytest.mark.parametrize(("error", "code"), [(UserError, 2), (CheckFailed, 1)])
def test_what_is_told_to_a_user_ends_an_entry_after_one_sentence(error, code, capsys):
    with pytest.raises(SystemExit) as stopped, entry("it.py"):
        raise error("This cannot be.")
    assert stopped.value.code == code
    assert capsys.readouterr() == ("", "it.py: This cannot be.\n")


def test_an_entry_prints_what_the_terminal_cannot_show(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    with entry("it.py"):
        print("±1", end="", flush=True)
    assert terminal.buffer.getvalue() == b"?1"


def test_modules_in_the_working_directory_are_found_behind_those_that_are_installed(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("")
    (tmp_path / "colorsys.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before = sys.path.copy()
    with entry("it.py"):
        assert import_module("only_here").__file__ == str(tmp_path / "only_here.py")
        import_module("colorsys")
    assert sys.path == before
    del sys.modules["only_here"]
