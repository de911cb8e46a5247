"""The code of the kernels on disk: compiled anew where any file that they are made of has changed."""

import shutil
from pathlib import Path

import numba
import pytest

from ml_pipeline.models.rl.compiled import kernel
from ml_pipeline.runtime import code_cache

FOLDER = Path(kernel.__file__).parent


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A copy of the kernels', while code is kept in a folder of its own."""
    copied = shutil.copytree(FOLDER, tmp_path / "compiled")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(kernel, "__file__", str(copied / "kernel.py"))
    return copied


def was_on_disk():
    """Whether a function's code was, as a new process would find."""
    code_cache._digest.cache_clear()

    def twice(x):
        return x + x

    dispatcher = kernel.kept(twice)
    assert dispatcher(1.0) == 2.0
    return sum(dispatcher.stats.cache_hits.values()) == 1


FILES = sorted(path.relative_to(FOLDER) for path in FOLDER.glob("**/*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("name", FILES, ids=str)
def test_a_change_of_any_file_compiles_anew(folder, name):
    assert [was_on_disk(), was_on_disk()] == [False, True]
    with (folder / name).open("a") as file:
        file.write("# changed\n")
    assert [was_on_disk(), was_on_disk()] == [False, True]
