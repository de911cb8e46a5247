"""The short names of the package: they are there, they load when they are first used, and type checkers see them."""

import ast
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import ml_pipeline
import ml_pipeline.service

PACKAGES = [ml_pipeline, ml_pipeline.service]


def names_of(package):
    """Its short names, those of modules that are there, and these modules."""
    return {name: module for name, module in package._MODULES.items() if find_spec(module) is not None}


SHORT_NAMES = [(package, name) for package in PACKAGES for name in names_of(package)]

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


def test_importing_the_service_imports_nothing_else():
    statement = "import ml_pipeline.service; dir(ml_pipeline.service); ml_pipeline.service.__all__"
    assert libraries_imported_by(statement) == ["ml_pipeline"]


def test_a_short_name_loads_no_more_than_its_module():
    imported = libraries_imported_by("from ml_pipeline import ParallelEnv")
    assert "gymnasium" in imported
    assert "torch" not in imported


@pytest.mark.parametrize(("package", "name"), SHORT_NAMES)
def test_a_short_name_is_the_thing_itself(package, name):
    thing = getattr(package, name)
    assert thing is getattr(import_module(thing.__module__), thing.__name__)
    assert name in dir(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_are_told_the_same_modules(package):
    """`if TYPE_CHECKING` imports each name of __all__ from the module that it comes from when it is used."""
    source = ast.parse(Path(package.__file__).read_text())
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body for alias in node.names}
    assert told == names_of(package)
    assert {*package._MODULES} == {*package.__all__}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ml_pipeline' has no attribute 'PPOTrainr'"):
        _ = ml_pipeline.PPOTrainr
    with pytest.raises(AttributeError, match=r"module 'ml_pipeline\.service' has no attribute 'TrainerAgnt'"):
        _ = ml_pipeline.service.TrainerAgnt


def test_modules_are_imported_as_ever():
    from ml_pipeline import train_ppo

    assert train_ppo.__name__ == "ml_pipeline.train_ppo"
