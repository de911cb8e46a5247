"""Imports go down the floors of the house, never in a circle, and load no library that a room does without.

The checkers are functions from sources to sentences, so that the tests show that they can fail.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ml_pipeline.commands import COMMANDS as TABLE

PACKAGE = Path(__file__).resolve().parent.parent / "ml_pipeline"
CONTRIBUTING = PACKAGE.parent / "CONTRIBUTING.md"
RL, TRADING = "models.rl", "trading"

# From the ground up. A module imports its own room and the rooms of the floors below it; rooms on one floor do not
# know each other. A room may have floors of its own, from the ground up as well; a dot is the rest of the room.
FLOORS = (
    "config.errors",
    "config.checks",
    "config.env_schedule",
    "config.wording",
    "runtime",
    "config",
    "jobs",
    "monitoring",
    "reporting",
    "models.rl, trading",
    "integrations",
    "runs",
    "tuning.study_files, experiments",
    "service",
    "tuning",
    "live",
    "dashboard, testing",
)
WITHIN = {
    "models.rl": "core.stepping < core.workers < core < preprocessing < transitions < networks < compiled < policies"
    " < ranks < update < rollout < distributed < algorithms",
    "trading": "market < features, accounts < envs < evaluation < .",
    "runs": "environments < sb3 < . < trained, commands",
    "service": ". < commands",
    "live": "brokers < feeds, decisions < risk, alpaca, retraining < .",
    "dashboard": ". < web < server",
}
USUAL = "numpy gymnasium cloudpickle torch tqdm psutil pydantic tyro yaml"
# What importing a module of a room loads, by itself or by what it imports; after the bar, what only a function imports.
LIBRARIES = {
    "config": "pydantic tyro yaml",
    "runtime": "numpy gymnasium | numba",
    "jobs": "psutil",
    "monitoring": "tqdm psutil | torch tensorboard wandb pynvml",
    "reporting": "numpy tqdm psutil | matplotlib",
    "models.rl": "numpy gymnasium cloudpickle torch tqdm psutil",
    "models.rl.compiled": "numpy gymnasium torch numba llvmlite",
    "models.rl.preprocessing.compiled_moments": "numpy numba",
    "trading": "numpy gymnasium | numba polars matplotlib vectorbt",
    "trading.accounts.tensor_ops": "numpy torch",
    "integrations": "numpy gymnasium cloudpickle stable_baselines3",
    "runs": f"{USUAL} | ray matplotlib onnxruntime onnxscript av PIL",
    "runs.sb3": f"{USUAL} stable_baselines3 | sb3_contrib",
    "runs.trained.load_sb3_policy": f"{USUAL} stable_baselines3",
    "experiments": f"{USUAL} | matplotlib",
    "service": USUAL,
    "tuning": f"{USUAL} optuna sqlalchemy | matplotlib psycopg cmaes",
    "live": f"{USUAL} | polars keyring apprise",
    "live.alpaca": "numpy | alpaca keyring requests",
    "testing": f"{USUAL} pytest",
    "dashboard": f"{USUAL} rich | polars",
    "dashboard.web": f"{USUAL} starlette uvicorn",
    "dashboard.server": f"{USUAL} | uvicorn",
}

# Arrays on a device, for batched environments in the trainer's process: imported if a device is named.
TENSORS = f"{TRADING}.accounts.tensor_ops"

# Commands may import anything, and nothing may import them.
COMMANDS = {command.module.removeprefix("ml_pipeline.") for command in TABLE.values()} | {
    *("__main__", "cli", "commands", "completion", "compile_kernels", "test_parallel_env"),
}
# Only these print besides commands: what they show on a terminal, and the parts of one command.
VERSION = "__version__"  # of the package itself, which no arrow is about
PRINTING = (
    *("config.flags", "monitoring.console", "monitoring.progress", "dashboard.terminal.views"),
    *(f"runs.commands.{name}" for name in ("train_run", "ranks")),
)
# Only these install signal handlers besides commands: a context manager that the trainer enters in the main thread
# where nobody else handles Ctrl-C, what commands begin with, and worker processes, which ignore it.
SIGNALLING = (
    f"{RL}.algorithms.interruption",
    "runtime.interrupts",
    f"{RL}.core.workers.main",
)
# What runs in a worker process, with all that it imports in turn, goes without torch: 290 MB and 2 s a worker.
IN_WORKERS = (f"{RL}.core.vec_env", f"{RL}.core.workers.main", TRADING, "integrations.env_calls", "runs.environments")


class Import(NamedTuple):
    name: str
    at_once: bool
    """Whether importing the module does it, in place of calling a function."""
    for_types: bool = False
    """Whether it is for type checkers alone."""


def is_below(name: str, *parents: str) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def deepest(name: str, names: Iterable[str]) -> str | None:
    """The longest of these names that a module lies in."""
    return max((each for each in names if is_below(name, each)), key=len, default=None)


@cache
def places() -> dict[str, tuple[str, int, int]]:
    """By room: the room on its own floor that it belongs to, the number of that floor, and its floor inside."""
    found = {}
    for floor, beside in enumerate(FLOORS):
        for outer in beside.split(", "):
            inner_floors = WITHIN.get(outer, ".").split(" < ")
            for inner_floor, rooms in enumerate(inner_floors):
                for room in rooms.split(", "):
                    found[outer if room == "." else f"{outer}.{room}"] = (outer, floor, inner_floor)
            found.setdefault(outer, (outer, floor, len(inner_floors)))
    return found


def points_down(module: str, imported: str) -> bool:
    """Whether a module may import another."""
    mine, other = deepest(module, places()), deepest(imported, places())
    if mine is None or other is None or imported in COMMANDS:
        return False
    (outer, floor, inner), (others_outer, others_floor, others_inner) = places()[mine], places()[other]
    if outer == others_outer:
        return mine == other or others_inner < inner
    return others_floor < floor


def libraries_of(module: str) -> tuple[set[str], set[str]]:
    """Those that importing the module may load, and those that its functions may import."""
    at_once, _, lazy = LIBRARIES.get(deepest(module, LIBRARIES) or "", "").partition("|")
    return {*at_once.split()}, {*lazy.split(), *at_once.split()}


@cache
def every_import_of(source: str) -> tuple[Import, ...]:
    """Every import of a module, `from a import b` as a.b; ours without the package's name."""

    def walk(node: ast.AST, *, at_once: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in {
            getattr(node.test, "id", ""),
            getattr(node.test, "attr", ""),
        }:
            for_types = True
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name.removeprefix("ml_pipeline."), at_once, for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}".removeprefix("ml_pipeline."), at_once, for_types)
        inside = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_once=inside, for_types=for_types)

    return tuple(walk(ast.parse(source), at_once=True, for_types=False))


def imports_of(source: str) -> Iterator[Import]:
    """Those that are not for type checkers alone."""
    return (each for each in every_import_of(source) if not each.for_types)


def reads_argv(source: str) -> bool:
    if "argv" not in source:  # to parse each module once more would take seconds
        return False
    nodes = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return "sys.argv" in nodes or any(each.name == "sys.argv" for each in imports_of(source))


def touches_the_terminal(module: str, source: str) -> Iterator[str]:
    """What a module does that is a command's alone: to print, and to install signal handlers."""
    if "print(" not in source and "signal.signal" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called == "print" and module not in {*COMMANDS, *PRINTING}:
            yield f"{module} prints"
        if called == "signal.signal" and module not in {*COMMANDS, *SIGNALLING}:
            yield f"{module} installs a signal handler"


def module_named(name: str, sources: Mapping[str, str]) -> str | None:
    """Which of our modules an import reads: itself, or the one that it takes a name from."""
    return next((module for module in (name, name.rpartition(".")[0]) if module in sources), None)


def broken_arrows(sources: Mapping[str, str], house: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each import, in modules by name, that the tables forbid. house: every module of ours, by name."""
    ours = house or sources
    broken = []
    for module, source in sources.items():
        if module in {*COMMANDS, "__init__"}:
            continue
        at_once_libraries, lazy_libraries = libraries_of(module)
        for name, at_once, _ in imports_of(source):
            library = name.split(".")[0]
            if library in sys.stdlib_module_names or name == VERSION:
                continue
            imported = module_named(name, ours)
            if imported is not None:
                if not points_down(module, imported):
                    broken.append(f"{module} imports {name}")
            elif library not in lazy_libraries:
                broken.append(f"{module} imports {name}")
            elif at_once and library not in at_once_libraries:
                broken.append(f"{module} imports {name} at once")
        if reads_argv(source):
            broken.append(f"{module} reads sys.argv")
        broken += touches_the_terminal(module, source)
    return broken


def loaded_by_importing(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """By module, the libraries that importing it loads, by itself or by what it imports."""
    ours, libraries = {}, {}
    for module, source in sources.items():
        names = [name for name, at_once, _ in imports_of(source) if at_once and name != VERSION]
        ours[module] = {found for name in names if (found := module_named(name, sources))}
        libraries[module] = {name.split(".")[0] for name in names if not module_named(name, sources)}
    loaded = {}
    for module in sources:
        seen, waiting = {module}, [module]
        while waiting:
            fresh = ours[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        loaded[module] = set().union(*(libraries[each] for each in seen)) - {*sys.stdlib_module_names}
    return loaded


def loads_too_much(sources: Mapping[str, str]) -> list[str]:
    """A sentence for each module that loads a library that its room does without."""
    return [
        f"{module} loads {library}"
        for module, loaded in loaded_by_importing(sources).items()
        if module not in COMMANDS
        for library in sorted(loaded - libraries_of(module)[0])
    ]


def modules_imported(source: str, sources: Mapping[str, str]) -> set[str]:
    """Those of our modules that a module imports, those for type checkers included."""
    names = {each.name for each in every_import_of(source)}
    return {module for name in names for module in (name, name.rpartition(".")[0]) if module in sources}


def circles(sources: Mapping[str, str]) -> list[str]:
    """A sentence for each module that imports itself by way of others, those for type checkers included."""
    graph = {module: modules_imported(source, sources) for module, source in sources.items()}
    found = []
    for start, imported in graph.items():
        came_from = dict.fromkeys(imported - {start}, start)
        waiting = list(came_from)
        while waiting:
            module = waiting.pop()
            if start in graph[module]:
                path = [module]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                found.append(" <- ".join([start, *path]))
                break
            fresh = graph[module] - {*came_from}
            came_from.update(dict.fromkeys(fresh, module))
            waiting += fresh
    return found


def reached_from(start: str, sources: Mapping[str, str]) -> set[str]:
    """Every name that a module imports, and all those that they import in turn, without what a device calls for."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name, *_ in imports_of(sources[waiting.pop()]):
            module = name if name in sources else name.rpartition(".")[0]
            if name not in reached and module in sources and module != TENSORS:
                waiting.append(module)
            reached.add(name)
    return reached


def torch_in_workers(sources: Mapping[str, str]) -> list[str]:
    """A sentence for each module of a worker process that reaches torch."""
    modules = [module for module in sources if is_below(module, *IN_WORKERS) and module not in {TENSORS, *COMMANDS}]
    return [
        f"{module} reaches torch"
        for module in modules
        if any(is_below(name, "torch") for name in reached_from(module, sources))
    ]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The package's modules by name, without the package's own."""
    paths = {path: path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    return {".".join(dotted.parts).removesuffix(".__init__"): path.read_text() for path, dotted in paths.items()}


def test_arrows_point_down(sources):
    assert broken_arrows(sources) == []


def test_nothing_goes_in_a_circle(sources):
    assert circles(sources) == []


def test_importing_a_module_loads_no_library_that_its_room_does_without(sources):
    assert loads_too_much(sources) == []


def test_the_house_is_drawn_as_it_is():
    rooms = [[room for room in beside.split(", ") if room == RL or "." not in room] for beside in reversed(FLOORS)]
    drawing = " -> ".join(["commands", *(" | ".join(floor).replace(".", "/") for floor in rooms if floor)])
    assert drawing in " ".join(CONTRIBUTING.read_text().split())


def test_nothing_in_a_worker_process_reaches_torch(sources):
    assert torch_in_workers(sources) == []


def test_importing_a_package_imports_nothing_else():
    filled = {path.read_text() for path in PACKAGE.rglob("__init__.py")} - {""}
    imported = {each for source in filled for each in imports_of(source)}
    assert imported == {
        Import("typing.TYPE_CHECKING", at_once=True),
        Import("runtime.lazy_names.lazy_names", at_once=True),
    }


@pytest.mark.parametrize("name", sorted({*places(), *LIBRARIES, *IN_WORKERS, *COMMANDS, *PRINTING, *SIGNALLING}))
def test_what_the_rules_name_is_there(sources, name):
    assert name in sources


def test_every_module_has_a_floor(sources):
    rooms = {name for name, source in sources.items() if source and name not in COMMANDS}
    assert {room for room in rooms if deepest(room, places()) is None} == {"__init__"}


@pytest.mark.parametrize(
    ("module", "source", "sentence"),
    [
        (f"{RL}.rollout.gae", "import ml_pipeline.trading.task", "imports trading.task"),
        (f"{RL}.rollout.gae", "def f():\n  import polars", "imports polars"),
        (f"{RL}.rollout.gae", "from yaml import load", "imports yaml.load"),
        (f"{RL}.networks.mlp", "from ml_pipeline.models.rl.policies import x", f"imports {RL}.policies.x"),
        ("trading.envs.fast", "from ml_pipeline.models.rl import networks", "imports models.rl.networks"),
        ("trading.envs.fast", "import torch", "imports torch"),
        ("trading.envs.fast", "def f():\n  import torch", "imports torch"),
        ("trading.envs.fast", "import ml_pipeline.train_ppo", "imports train_ppo"),
        ("trading.task", "import ml_pipeline.trading.inspect_data", "imports trading.inspect_data"),
        ("trading.market.files", "import polars as pl", "imports polars at once"),
        ("trading.evaluation.page", "class A:\n  import matplotlib.pyplot", "imports matplotlib.pyplot at once"),
        ("config.ppo", "from ml_pipeline.monitoring import sink", "imports monitoring.sink"),
        ("config.ppo", "from ml_pipeline import train_ppo", "imports train_ppo"),
        ("config.ppo", "import torch", "imports torch"),
        ("monitoring.sink", "from ml_pipeline.reporting.page import X", "imports reporting.page.X"),
        ("monitoring.sink", "try:\n  import pydantic\nexcept ImportError: pass", "imports pydantic"),
        ("runs.run", "import ml_pipeline.runs.trained.restore", "imports runs.trained.restore"),
        ("runs.folder", "from ml_pipeline.experiments.fit_config import X", "imports experiments.fit_config.X"),
        ("trading.task", "import sys\nname = sys.argv[0]", "reads sys.argv"),
        ("trading.task", "from sys import argv", "reads sys.argv"),
        ("runs.run", "def f():\n  print('hello')", "prints"),
        ("monitoring.sink", "import sys\nprint('hello', file=sys.stderr)", "prints"),
        ("runs.run", "import signal\nsignal.signal(2, None)", "installs a signal handler"),
    ],
)
def test_an_arrow_that_points_up_is_found(sources, module, source, sentence):
    assert broken_arrows({module: source}, sources) == [f"{module} {sentence}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("train_ppo", "import sys, tyro, torch, ml_pipeline.trading.task\nsys.argv"),
        ("trading.task", "import os.path\nfrom ml_pipeline.config.errors import UserError"),
        ("trading.market.files", "def f():\n  import polars"),
        ("evaluate_ppo", "import signal\nsignal.signal(2, None)\nprint('hello')"),
        ("monitoring.console", "print('hello')"),
        ("trading.envs.fast", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import torch"),
        ("trading.envs.fast", "from ml_pipeline.runtime.seeding import spread"),
        (f"{RL}.rollout.gae", "import torch.nn\nfrom ml_pipeline.config.ppo import PPOConfig"),
    ],
)
def test_an_arrow_that_points_down_is_fine(sources, module, source):
    assert broken_arrows({module: source}, sources) == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        (f"{RL}.policies.policy", f"{RL}.compiled.kernel"),
        ("trading.envs.fast", TENSORS),
        ("trading.task", "config.files"),
        ("runs.run", "runs.sb3.trainer"),
    ],
)
def test_a_library_is_found_however_far_away(sources, module, imported):
    loaded = loads_too_much({**sources, module: f"from ml_pipeline.{imported} import x"})
    assert any(sentence.startswith(f"{module} loads ") for sentence in loaded)
    assert loads_too_much({**sources, module: f"def f():\n  from ml_pipeline.{imported} import x"}) == []


def test_a_circle_is_found_however_wide():
    sources = {
        "a": "import ml_pipeline.b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from ml_pipeline.c import g",
        "c": "def f():\n  from ml_pipeline.a import h",
        "d": "import ml_pipeline.a",
    }
    assert [sentence.split(" ")[0] for sentence in circles(sources)] == ["a", "b", "c"]


def test_torch_is_found_however_far_away():
    sources = {
        f"{RL}.core.vec_env": "import ml_pipeline.models.rl.core.b",
        f"{RL}.core.b": "from ml_pipeline.models.rl.core.c import g",
        f"{RL}.core.c": "import ml_pipeline.models.rl.core.b\ndef g():\n  import torch.nn",
        "trading.envs.fast": "import numpy",
    }
    assert torch_in_workers(sources) == [f"{RL}.core.vec_env reaches torch"]
