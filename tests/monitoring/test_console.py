import io
import os
import signal
import subprocess
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_an_entry_after_one_sentence(number, capsys):
    usual = signal.getsignal(number)
    with pytest.raises(SystemExit) as stopped, entry("it.py"):
        signal.raise_signal(number)
    assert stopped.value.code == 128 + number
    assert capsys.readouterr() == ("", f"it.py: Stopped by {number.name}.\n")
    assert signal.getsignal(number) == usual


def test_a_working_directory_that_was_deleted_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(SystemExit) as stopped, entry("it.py"):
        pytest.fail("nothing can be done there")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "it.py: The working directory was deleted; change to one that exists.\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_what_a_command_was_for_and_cannot_be_printed_is_one_sentence():
    code = "from ml_pipeline.monitoring.console import entry\nwith entry('it.py'): print('lost')"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "it.py: stdout cannot be written: No space left on device.\n")
