"""A user's modules are imported by name, and what is wrong with them is said as what it is."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import ml_pipeline
from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.user_code import call_user_code, import_by_name, innermost_user_line

NOT_THERE = "which is not there; install it, or add its folder to PYTHONPATH."
MODULES = {
    "fine.py": "def signal(bars): ...\n",
    "greedy.py": "\n\nimport pandaz.io\n",
    "package/__init__.py": "",
    "package/inner.py": "import greedy\n",
    "typo.py": "x = 1\ndef f(:\n",
    "fails.py": "def halve():\n    return 1 / 0\n\nhalve()\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
    "old.py": "from json import lods\n",
}


@pytest.fixture(autouse=True)
def in_their_folder(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in {"fine", "package"}:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "greedy:f",
            f"greedy cannot be imported: line 3 of greedy.py imports pandaz, {NOT_THERE}",
        ),
        (
            "package.inner:f",
            f"package.inner cannot be imported: line 3 of greedy.py imports pandaz, {NOT_THERE}",
        ),
        ("typo:f", "typo cannot be imported: line 2 of typo.py is not valid Python: invalid syntax."),
        ("fails:f", "fails cannot be imported: line 2 of fails.py raised ZeroDivisionError: division by zero."),
        ("old:f", "old cannot be imported: line 1 of old.py raised ImportError: cannot import name 'lods' from 'json'"),
        ("leaves:f", "leaves cannot be imported: line 2 of leaves.py raised SystemExit: 3."),
        ("nope:f", 'There is no module "nope": run in the folder of nope.py, add that folder to'),
        ("package.gone:f", 'There is no module "package.gone": run in the folder of package/gone.py, add'),
        ("nope.inner:f", 'There is no module "nope": run in the folder of nope.py,'),
        ("fine:signa", 'fine:signa cannot be imported: fine has no "signa". Did you mean "signal"?'),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(name, sentence):
    with pytest.raises(UserError) as told:
        import_by_name(name)
    assert str(told.value).startswith(sentence)
    assert "\n" not in str(told.value)


def test_what_can_be_is_returned():
    assert import_by_name("fine:signal").__name__ == "signal"


def beyond_all(bars):
    return np.percentile(bars, 200)


def test_a_failure_inside_a_library_is_told_with_the_users_line():
    line = beyond_all.__code__.co_firstlineno + 1
    with pytest.raises(UserError, match=rf"beyond failed in line {line} of test_user_code\.py: ValueError: "):
        call_user_code("beyond", beyond_all, np.zeros(2))


def test_a_folder_whose_name_begins_as_the_packages_does_is_the_users():
    beside = Path(ml_pipeline.__file__).resolve().parent.with_name("ml_pipeline_envs") / "mine.py"
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile("1 / 0", str(beside), "exec"))
    assert innermost_user_line(raised.value).filename == str(beside)


def test_a_failed_import_is_told_where_the_working_directory_was_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "cwd", _no_folder)
    with pytest.raises(UserError, match=r"line 2 of .*fails\.py raised ZeroDivisionError"):
        import_by_name("fails:f")


def _no_folder():
    raise FileNotFoundError(os.strerror(2))


def _leave(code):
    sys.exit(code)


def test_code_that_exits_is_said_to_have_failed():
    with pytest.raises(UserError, match=r"mine failed in line \d+ of test_user_code.py: SystemExit: 5"):
        call_user_code("mine", _leave, 5)
