"""Machine code on disk: loaded where it is the same, compiled where anything that went into it has changed."""

import contextlib
import pickle
import subprocess
import sys

import numba
import pytest
from numba.core.caching import CacheImpl

from ml_pipeline.runtime import code_cache
from ml_pipeline.runtime.code_cache import keep_code
from ml_pipeline.runtime.files import alone


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file that may change, while code is kept in a folder of its own."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    code_cache._digest.cache_clear()
    path = tmp_path / "source.py"
    path.write_text("TERM = 1")
    return path


def compiled(source, term):
    """A new dispatcher over a closure, as each process makes one, and what it returns for 1.0."""
    inner = numba.njit(lambda value: value + term)

    def outer(value):
        return inner(value)

    dispatcher = keep_code(numba.njit(outer), made_of=[source])
    return dispatcher, dispatcher(1.0)


def test_code_is_compiled_once_and_again_where_a_source_has_changed(source):
    first, result = compiled(source, 1)
    assert (result, sum(first.stats.cache_hits.values())) == (2.0, 0)
    second, result = compiled(source, 1)
    assert (result, sum(second.stats.cache_hits.values())) == (2.0, 1)
    source.write_text("TERM = 2")
    code_cache._digest.cache_clear()
    third, result = compiled(source, 2)
    assert (result, sum(third.stats.cache_hits.values())) == (3.0, 0)


def test_code_that_cannot_be_read_or_written_is_compiled(source, tmp_path, monkeypatch):
    compiled(source, 1)
    for file in (tmp_path / "kept").rglob("*.nb?"):
        file.write_bytes(file.read_bytes()[:9])
    assert compiled(source, 1)[1] == 2.0
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert compiled(source, 1)[1] == 2.0


@pytest.mark.parametrize("index", [b"", b"nonsense", b"cml_pipeline.runtime.code_cache\nGone\n.", b"cgone\nGone\n."])
def test_an_index_that_cannot_be_read_is_written_again(source, tmp_path, index):
    """As that of an earlier version, whose signatures name classes that have moved since."""
    compiled(source, 1)
    (file,) = (tmp_path / "kept").rglob("*.nbi")
    file.write_bytes(pickle.dumps(numba.__version__) + index)
    assert [sum(compiled(source, 1)[0].stats.cache_hits.values()) for _ in range(2)] == [0, 1]


def test_a_file_that_holds_the_code_of_another_signature_is_not_used(source, tmp_path):
    """As where two processes write at once: both take the first free number for their file."""
    dispatcher, _ = compiled(source, 1)
    assert dispatcher(1) == 2
    of_float, of_int = sorted((tmp_path / "kept").rglob("*.nbc"))
    of_float.write_bytes(of_int.read_bytes())
    again, result = compiled(source, 1)
    assert (result, again(1.5)) == (2.0, 2.5)
    assert sum(again.stats.cache_hits.values()) == 0


ONE_OF_SEVERAL = """
import numba
from ml_pipeline.runtime.code_cache import keep_code
dispatcher = keep_code(numba.njit(lambda value: value + 1), made_of=[])
print("ready", flush=True)
input()
dispatcher(1.0)
print(sum(dispatcher.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_of_several_processes_one_compiles_and_the_others_load(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ONE_OF_SEVERAL)
    processes = [
        subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(process.communicate(timeout=60)[0].strip() for process in processes) == ["0", "1", "1"]
    assert not list(tmp_path.rglob("*.lock"))


def test_a_process_that_cannot_compile_leaves_the_turn_to_the_next(source, tmp_path):
    def fails(value):
        return value.nothing_of_this_name

    dispatcher = keep_code(numba.njit(fails), made_of=[source])
    with pytest.raises(numba.TypingError):
        dispatcher(1.0)
    assert not list((tmp_path / "kept").rglob("*.lock"))


def test_nobody_waits_for_ever_for_a_process_that_is_suspended(source, tmp_path, monkeypatch):
    monkeypatch.setattr(code_cache, "_TURN_S", 0.1)
    held = []

    def take(path, **settings):
        if not held:  # as another process would
            held.append(contextlib.ExitStack())
            held[0].enter_context(alone(path))
        return alone(path, **settings)

    monkeypatch.setattr(code_cache, "alone", take)
    assert compiled(source, 1)[1] == 2.0
    assert held
    held[0].close()


def test_code_cannot_be_kept_where_no_folder_can_be_written_to(source, monkeypatch):
    assert code_cache.can_keep_code()
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    assert not code_cache.can_keep_code()
    assert compiled(source, 1)[1] == 2.0
