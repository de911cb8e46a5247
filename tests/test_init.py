"""The public names of the packages: they load when they are first used, and docs import nothing else."""

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import ml_pipeline

PACKAGE = Path(ml_pipeline.__file__).parent
REPOSITORY = PACKAGE.parent
PUBLIC = [
    import_module(".".join(path.relative_to(REPOSITORY).parent.parts))
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if path.read_text()
]
NAMES = [(package, name) for package in PUBLIC for name in package.__all__]

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


@pytest.mark.parametrize("package", PUBLIC)
def test_importing_a_package_imports_nothing_else(package):
    name = package.__name__
    assert libraries_imported_by(f"import {name}; dir({name}); {name}.__all__") == ["ml_pipeline"]


def test_a_short_name_loads_no_more_than_its_module():
    imported = libraries_imported_by("from ml_pipeline import ParallelEnv")
    assert "gymnasium" in imported
    assert "torch" not in imported


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_is_the_thing_itself(package, name):
    if "SB3" in name:
        pytest.importorskip("stable_baselines3")
    thing = getattr(package, name)
    assert name in dir(package)
    if hasattr(thing, "__module__"):
        assert thing is getattr(import_module(thing.__module__), thing.__name__)


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_no_module_takes_the_place_of_a_public_name(package, name):
    """Once imported, a module of the same name would be the package's attribute."""
    assert find_spec(f"{package.__name__}.{name}") is None


def test_one_public_name_is_one_thing():
    found = {}
    for package, name in NAMES:
        if "SB3" not in name:
            assert found.setdefault(name, getattr(package, name)) is getattr(package, name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ml_pipeline' has no attribute 'PPOTrainr'"):
        _ = ml_pipeline.PPOTrainr
    with pytest.raises(ImportError, match="cannot import name 'TrainerAgnt'"):
        from ml_pipeline.service import TrainerAgnt  # noqa: F401


def test_modules_are_imported_as_ever():
    from ml_pipeline import train_ppo

    assert train_ppo.__name__ == "ml_pipeline.train_ppo"


# Paths that users know, and the module that registers the ids of Gymnasium.
KNOWN_PATHS = {
    "ml_pipeline.models.rl.core.vec_env",
    "ml_pipeline.models.rl.algorithms.ppo_trainer",
    "ml_pipeline.trading.gym_ids",
}


def deep_imports(text: str) -> set[str]:
    """The modules of the package, other than the public ones, that lines of this text import."""
    found = re.findall(r"^\W*(?:from|import) (ml_pipeline[\w.]*)", text, re.MULTILINE)
    return {*found} - {package.__name__ for package in PUBLIC} - KNOWN_PATHS


def test_docs_and_examples_import_public_names_alone():
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "examples").glob("*.*")]
    assert {page.name: found for page in pages if (found := deep_imports(page.read_text()))} == {}


@pytest.mark.parametrize("line", ["import ml_pipeline.runs", '"from ml_pipeline.runs'])
def test_an_import_of_a_deep_module_is_found(line):
    assert deep_imports(f"```\n    {line}\n") == {"ml_pipeline.runs"}
