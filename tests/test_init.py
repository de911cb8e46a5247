"""The short names of the package: they are there, they load when they are first used, and type checkers see them."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ml_pipeline

IMPORTED_LIBRARIES = """
before = set(sys.modules)
{}
own = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(own - sys.stdlib_module_names))
"""


def libraries_imported_by(statement):
    """What a fresh interpreter has imported after the statement, without the standard library."""
    code = "import sys\n" + IMPORTED_LIBRARIES.format(statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.split()


def test_importing_the_package_imports_nothing():
    assert libraries_imported_by("import ml_pipeline; dir(ml_pipeline); ml_pipeline.__version__") == ["ml_pipeline"]


def test_a_short_name_loads_no_more_than_its_module():
    imported = libraries_imported_by("from ml_pipeline import ParallelEnv")
    assert "gymnasium" in imported
    assert "torch" not in imported


@pytest.mark.parametrize("name", ml_pipeline.__all__)
def test_a_short_name_is_the_thing_itself(name):
    thing = getattr(ml_pipeline, name)
    assert thing is getattr(import_module(thing.__module__), thing.__name__)
    assert name in dir(ml_pipeline)


def test_type_checkers_are_told_the_same_modules():
    """`if TYPE_CHECKING` imports each name of __all__ from the module that it comes from when it is used."""
    source = ast.parse(Path(ml_pipeline.__file__).read_text())
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body for alias in node.names}
    assert told == ml_pipeline._MODULES
    assert {*told} == {*ml_pipeline.__all__}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ml_pipeline' has no attribute 'PPOTrainr'"):
        _ = ml_pipeline.PPOTrainr


def test_modules_are_imported_as_ever():
    from ml_pipeline import train_ppo

    assert train_ppo.__name__ == "ml_pipeline.train_ppo"
