"""Machine code on disk: loaded where it is the same, compiled where anything that went into it has changed."""

import numba
import pytest

from ml_pipeline.runtime import code_cache
from ml_pipeline.runtime.code_cache import keep_code


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


def test_a_file_that_holds_the_code_of_another_signature_is_not_used(source, tmp_path):
    """As where two processes write at once: both take the first free number for their file."""
    dispatcher, _ = compiled(source, 1)
    assert dispatcher(1) == 2
    of_float, of_int = sorted((tmp_path / "kept").rglob("*.nbc"))
    of_float.write_bytes(of_int.read_bytes())
    again, result = compiled(source, 1)
    assert (result, again(1.5)) == (2.0, 2.5)
    assert sum(again.stats.cache_hits.values()) == 0
