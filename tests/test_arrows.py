"""The arrows between packages point down: entries -> models/rl | trading -> config, monitoring.

The checker is a function from sources to sentences, so that the tests show that it can fail.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ml_pipeline"


class Wing(NamedTuple):
    """What the modules below a name may import, besides the standard library."""

    ours: tuple[str, ...]
    libraries: tuple[str, ...]


# Settings as plain values, and sentences; the rest of config reads flags and files, with pydantic, tyro and YAML.
VALUES = tuple(f"ml_pipeline.config.{name}" for name in ("errors", "checks", "ppo", "wording"))
# Batches of environments as tensors live in the trainer's process: imported by a function, where a device is named.
TENSORS = "ml_pipeline.trading.tensor_ops"
# The compiled update needs an extra, and seconds to import: a function imports it, where it is there.
COMPILED = "ml_pipeline.models.rl.compiled"
# Modules right below ml_pipeline are entries: nothing is forbidden to them, and
# nothing below may import them, since they are in no list.
WINGS = {
    "ml_pipeline.config": Wing(("ml_pipeline.config",), ("pydantic", "tyro", "yaml")),
    "ml_pipeline.monitoring": Wing(("ml_pipeline.config.errors", "ml_pipeline.monitoring"), ("tqdm",)),
    COMPILED: Wing(("ml_pipeline.models.rl",), ("torch", "numpy", "numba", "llvmlite")),
    "ml_pipeline.models.rl": Wing(
        (*VALUES, "ml_pipeline.monitoring", "ml_pipeline.models.rl"),
        ("torch", "numpy", "cloudpickle", "gymnasium", "tqdm", "numba"),
    ),
    TENSORS: Wing(("ml_pipeline.trading",), ("torch", "numpy")),
    "ml_pipeline.trading": Wing(
        (*VALUES, "ml_pipeline.monitoring", "ml_pipeline.models.rl.core", "ml_pipeline.trading"),
        ("numpy", "gymnasium", "polars", "matplotlib", "numba", "vectorbt"),
    ),
}
# What a wing may import but not by merely being imported: it would slow every worker down.
LAZY = {
    "ml_pipeline.models.rl": ("numba", COMPILED),
    "ml_pipeline.trading": ("polars", "matplotlib", "numba", "vectorbt", TENSORS),
}
# Commands of the trading wing: as for the modules right below ml_pipeline, nothing is forbidden to them, nor may
# anything import them.
ENTRIES = ("ml_pipeline.trading.inspect_data", "ml_pipeline.trading.sanity", "ml_pipeline.trading.walk_forward")
# What runs in a worker process, with all that it imports in turn, goes without torch: 290 MB and 2 s a worker.
IN_WORKERS = ("ml_pipeline.models.rl.core.vec_env", "ml_pipeline.models.rl.core.vec_worker", "ml_pipeline.trading")


class Import(NamedTuple):
    name: str
    at_once: bool
    """Whether importing the module does it, in place of calling a function."""


def is_below(name: str, *parents: str) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def imports_of(source: str) -> Iterator[Import]:
    """Every import of a module, `from a import b` as a.b, without those for type checkers alone."""

    def walk(node: ast.AST, *, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (Import(f"{node.module}.{alias.name}", at_once) for alias in node.names)
        inside = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_once=inside)

    return walk(ast.parse(source), at_once=True)


def reads_argv(source: str) -> bool:
    nodes = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return "sys.argv" in nodes or any(each.name == "sys.argv" for each in imports_of(source))


def broken_arrows(sources: Mapping[str, str]) -> list[str]:
    """A sentence for each import, in modules by name, that the arrows forbid."""
    broken = []
    for module, source in sources.items():
        wing = next((name for name in WINGS if is_below(module, name)), None)
        if wing is None or module in ENTRIES:
            continue
        for name, at_once in imports_of(source):
            if name.split(".")[0] in sys.stdlib_module_names:
                continue
            if not is_below(name, *WINGS[wing].ours, *WINGS[wing].libraries) or is_below(name, *ENTRIES):
                broken.append(f"{module} imports {name}")
            elif at_once and is_below(name, *LAZY.get(wing, ())):
                broken.append(f"{module} imports {name} at once")
        if reads_argv(source):
            broken.append(f"{module} reads sys.argv")
    return broken


def reached_from(start: str, sources: Mapping[str, str]) -> set[str]:
    """Every name that a module imports, and all those that they import in turn, without what a device calls for."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name, _ in imports_of(sources[waiting.pop()]):
            module = name if name in sources else name.rpartition(".")[0]
            if name not in reached and module in sources and module != TENSORS:
                waiting.append(module)
            reached.add(name)
    return reached


def torch_in_workers(sources: Mapping[str, str]) -> list[str]:
    """A sentence for each module of a worker process that reaches torch."""
    modules = [module for module in sources if is_below(module, *IN_WORKERS) and module not in {TENSORS, *ENTRIES}]
    return [
        f"{module} reaches torch"
        for module in modules
        if any(is_below(name, "torch") for name in reached_from(module, sources))
    ]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The package's modules by name."""
    paths = {path: path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")}
    return {".".join(dotted.parts).removesuffix(".__init__"): path.read_text() for path, dotted in paths.items()}


def test_arrows_point_down(sources):
    assert broken_arrows(sources) == []


def test_nothing_in_a_worker_process_reaches_torch(sources):
    assert torch_in_workers(sources) == []


def test_importing_a_package_imports_nothing_else():
    filled = [str(path) for path in PACKAGE.rglob("__init__.py") if path.read_text()]
    assert filled == []


@pytest.mark.parametrize("name", [*WINGS, *IN_WORKERS])
def test_what_the_rules_name_is_there(sources, name):
    assert name in sources


@pytest.mark.parametrize(
    ("module", "source", "sentence"),
    [
        ("models.rl.core.gae", "import ml_pipeline.trading.metrics", "imports ml_pipeline.trading.metrics"),
        ("models.rl.core.gae", "def f():\n  import polars", "imports polars"),
        ("models.rl.core.gae", "from yaml import load", "imports yaml.load"),
        ("models.rl.core.gae", "import numba", "imports numba at once"),
        ("trading.env", "from ml_pipeline.models.rl import networks", "imports ml_pipeline.models.rl.networks"),
        ("trading.env", "import torch", "imports torch"),
        ("trading.env", "def f():\n  import torch", "imports torch"),
        ("trading.env", f"from {TENSORS} import X", f"imports {TENSORS}.X at once"),
        ("trading.env", f"import {ENTRIES[0]}", f"imports {ENTRIES[0]}"),
        ("trading.env", "import ml_pipeline.config.files", "imports ml_pipeline.config.files"),
        ("trading.env", "import polars as pl", "imports polars at once"),
        ("trading.env", "class A:\n  import matplotlib.pyplot", "imports matplotlib.pyplot at once"),
        ("config.ppo", "from ml_pipeline.monitoring import sink", "imports ml_pipeline.monitoring.sink"),
        ("config.ppo", "from ml_pipeline import train_ppo", "imports ml_pipeline.train_ppo"),
        ("config.ppo", "import torch", "imports torch"),
        ("monitoring.sink", "from ml_pipeline.config.ppo import X", "imports ml_pipeline.config.ppo.X"),
        ("monitoring.sink", "try:\n  import pydantic\nexcept ImportError: pass", "imports pydantic"),
        ("trading.env", "import sys\nprint(sys.argv)", "reads sys.argv"),
        ("trading.env", "from sys import argv", "reads sys.argv"),
    ],
)
def test_an_arrow_that_points_up_is_found(module, source, sentence):
    assert broken_arrows({f"ml_pipeline.{module}": source}) == [f"ml_pipeline.{module} {sentence}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("train_ppo", "import sys, tyro, torch, ml_pipeline.trading.report\nsys.argv"),
        ("trading.env", "import os.path\nfrom ml_pipeline.config.errors import UserError"),
        ("trading.env", "def f():\n  import polars"),
        ("trading.env", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import torch"),
        ("trading.env", "from ml_pipeline.models.rl.core.seeding import spread"),
        ("models.rl.core.gae", "import torch.nn\nfrom ml_pipeline.config.ppo import PPOConfig"),
    ],
)
def test_an_arrow_that_points_down_is_fine(module, source):
    assert broken_arrows({f"ml_pipeline.{module}": source}) == []


def test_torch_is_found_however_far_away():
    sources = {
        "ml_pipeline.models.rl.core.vec_env": "import ml_pipeline.models.rl.core.b",
        "ml_pipeline.models.rl.core.b": "from ml_pipeline.models.rl.core.c import g",
        "ml_pipeline.models.rl.core.c": "import ml_pipeline.models.rl.core.b\ndef g():\n  import torch.nn",
        "ml_pipeline.trading.env": "import numpy",
    }
    assert torch_in_workers(sources) == ["ml_pipeline.models.rl.core.vec_env reaches torch"]
