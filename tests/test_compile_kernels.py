"""The command that compiles before the first training: what it says, and that it misses nothing."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from ml_pipeline import compile_kernels
from ml_pipeline.runs.kinds_to_compile import KINDS

TRAININGS = {
    "perceptron": ("--env-id", "CartPole-v1"),
    "trading": (),
    "memory": ("--env-id", "CartPole-v1", "--memory", "gru"),
    "perceptron-box": ("--env-id", "Pendulum-v1"),
    "memory-box": ("--env-id", "Pendulum-v1", "--memory", "lstm"),
    "trading-stops": ("--stop-loss", "0.05"),
    "trading-batched": ("--vec-env", "batched"),
}


def in_folder(folder, name, *arguments):
    """Run a command that keeps machine code there."""
    command = [sys.executable, "-m", "ml_pipeline", name, *arguments]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "code")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=True)


def codes(folder):
    """Every file of machine code, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "code").rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_second_call_finds_everything_on_disk(tmp_path):
    first = in_folder(tmp_path, "compile", "trading").stdout
    assert re.fullmatch(r"trading, stepping: compiled in [\d.]+ s\n", first)
    kept = codes(tmp_path)
    assert in_folder(tmp_path, "compile", "trading").stdout == "trading, stepping: on disk already\n"
    assert codes(tmp_path) == kept


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_after_it_no_kind_of_training_compiles(tmp_path):
    assert [*TRAININGS] == [*KINDS]
    in_folder(tmp_path, "compile")
    kept = codes(tmp_path)
    for kind, flags in TRAININGS.items():
        folder = tmp_path / "runs" / kind
        arguments = ("--n-envs", "2", "--iterations", "2", "--checkpoint-dir", str(folder), *flags)
        in_folder(tmp_path, "train", *arguments)
        assert codes(tmp_path) == kept, kind


def test_without_numba_there_is_nothing_to_compile(monkeypatch, capsys):
    monkeypatch.setattr(compile_kernels, "find_spec", lambda name: None)
    assert importlib.util.find_spec("numba") is not None
    assert compile_kernels.main([]) == 0
    assert capsys.readouterr().out.startswith("There is nothing to compile, because numba is not installed;")


def test_where_code_cannot_be_kept_it_says_what_to_set(monkeypatch, capsys):
    monkeypatch.setattr(compile_kernels, "can_keep_code", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        compile_kernels.main([])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("compile: Machine code cannot be saved: neither ")
    assert "set NUMBA_CACHE_DIR to a writable folder" in line


def test_another_kind_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        compile_kernels.main(["tranding"])
    assert '"tranding"' in capsys.readouterr().err


class Failing:
    """A part that fails in its process, or whose process ends."""

    def __init__(self, code):
        self.code = code

    def __call__(self):
        exec(self.code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('LLVM ERROR')", "failed, RuntimeError: LLVM ERROR"),
        ("import os; os._exit(3)", "failed, its process ended."),
    ],
)
def test_what_cannot_be_compiled_is_named(code, said, monkeypatch):
    monkeypatch.setattr(compile_kernels, "KINDS", {"perceptron": {"acting": Failing(code)}})
    part = compile_kernels.Part("perceptron", "acting")
    assert [*compile_kernels._compiled([part])] == [(part, said)]
