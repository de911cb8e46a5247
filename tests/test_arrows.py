"""Arrows between the rooms point down, and nothing goes in a circle; CONTRIBUTING.md draws the house.

The checkers are functions from sources to sentences, so that the tests show that they can fail.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ml_pipeline"
RL, TRADING = "models.rl", "trading"


class Room(NamedTuple):
    """What the modules of a folder may import, besides the standard library and each other.

    at_once: libraries that importing the module may load; lazy: those, and our own modules, that only a function may.
    """

    below: tuple[str, ...] = ()
    at_once: tuple[str, ...] = ()
    lazy: tuple[str, ...] = ()


# Settings as plain values, and sentences; the rest of config reads flags and files, with pydantic, tyro and YAML.
VALUES = ("config.errors", "config.checks", "config.ppo", "config.wording")
GROUND = (*VALUES, "runtime")
ENV_LIBRARIES = ("numpy", "gymnasium")
TORCH_LIBRARIES = ("torch", "numpy", "gymnasium")
# Arrays on a device, for batched environments in the trainer's process: imported where a device is named.
TENSORS = f"{TRADING}.accounts.tensor_ops"
# The compiled update needs an extra, and seconds to import: a function imports it, where it is there.
COMPILED = f"{RL}.compiled"
RECURRENT = f"{COMPILED}.recurrent"
MOMENTS = f"{RL}.preprocessing.compiled_moments"
# What a group of ranks is, values and a protocol, which learning needs to know.
RANKS = f"{RL}.distributed.ranks"
# Other algorithms need an extra, too.
SB3 = "runs.sb3"
# Searching over runs needs Optuna, an extra; the dashboard reads a study's files without it.
TUNING = "tuning"
# Trading bar by bar, by the policy and the arithmetic of the backtest; a broker of another company is an extra.
LIVE = "live"
ALPACA = f"{LIVE}.alpaca"
# Statistics of the best of many trials: formulas alone.
SELECTION = f"{TUNING}.selection"

# From the ground up: a room may import only rooms that stand above it in this table.
ROOMS = {
    "runtime.regular_file": Room(),
    "config": Room(("runtime.regular_file",), at_once=("pydantic", "tyro", "yaml")),
    "runtime": Room((*VALUES, "runtime.regular_file"), ENV_LIBRARIES, ("numba",)),
    "monitoring": Room(
        (
            *("config.env_schedule", "config.errors", "config.wording", "runtime.whole_file", "runtime.interrupts"),
            *("runtime.standard_streams", "runtime.user_code", "runtime.regular_file"),
        ),
        ("tqdm", "psutil"),
        ("torch", "tensorboard", "wandb", "pynvml", "matplotlib"),
    ),
    "reporting": Room((*VALUES, "monitoring"), ("numpy",), ("matplotlib",)),
    f"{RL}.core.stepping": Room(GROUND, (*ENV_LIBRARIES, "cloudpickle")),
    f"{RL}.core.workers": Room((*GROUND, f"{RL}.core.stepping"), (*ENV_LIBRARIES, "cloudpickle")),
    f"{RL}.core": Room((*GROUND, f"{RL}.core.stepping", f"{RL}.core.workers"), ENV_LIBRARIES),
    MOMENTS: Room(("runtime.code_cache",), ("numpy", "numba")),
    f"{RL}.preprocessing": Room(GROUND, TORCH_LIBRARIES, (MOMENTS,)),
    f"{RL}.networks": Room((*GROUND, f"{RL}.preprocessing"), TORCH_LIBRARIES),
    COMPILED: Room((*GROUND, f"{RL}.networks"), ("numpy", "torch", "numba", "llvmlite")),
    RECURRENT: Room((*GROUND, f"{RL}.networks", COMPILED), ("numpy", "torch", "numba")),
    f"{RL}.policies": Room((*GROUND, f"{RL}.preprocessing", f"{RL}.networks"), TORCH_LIBRARIES, (COMPILED, RECURRENT)),
    RANKS: Room(("config.errors",), ("torch",)),
    f"{RL}.update": Room((*GROUND, f"{RL}.networks", f"{RL}.policies", RANKS), TORCH_LIBRARIES, (COMPILED, RECURRENT)),
    f"{RL}.rollout": Room(
        (*GROUND, "monitoring", *(f"{RL}.{room}" for room in ("preprocessing", "networks", "policies", "update"))),
        TORCH_LIBRARIES,
    ),
    f"{RL}.distributed": Room(
        (
            *(*GROUND, f"{RL}.core.stepping", f"{RL}.core.workers"),
            *(f"{RL}.{room}" for room in ("preprocessing", "policies", "rollout", "distributed.ranks")),
        ),
        (*TORCH_LIBRARIES, "psutil"),
    ),
    f"{RL}.algorithms": Room((*GROUND, "monitoring", RL), TORCH_LIBRARIES),
    f"{TRADING}.market": Room(GROUND, ("numpy",), ("polars",)),
    f"{TRADING}.features": Room((*GROUND, f"{TRADING}.market"), ("numpy",)),
    f"{TRADING}.accounts": Room((*GROUND, f"{TRADING}.market"), ("numpy",), ("numba",)),
    TENSORS: Room(("runtime.row_generators", f"{TRADING}.accounts"), ("numpy", "torch")),
    f"{TRADING}.envs": Room(
        (*GROUND, "reporting", *(f"{TRADING}.{room}" for room in ("market", "features", "accounts"))),
        ENV_LIBRARIES,
        ("matplotlib", TENSORS),
    ),
    f"{TRADING}.evaluation": Room(
        (*GROUND, "reporting", *(f"{TRADING}.{room}" for room in ("market", "features", "accounts", "envs"))),
        ("numpy",),
        ("polars", "matplotlib", "vectorbt"),
    ),
    TRADING: Room((*GROUND, "config.sections", "reporting", TRADING), ENV_LIBRARIES),
    "integrations": Room((*GROUND, RL), (*ENV_LIBRARIES, "stable_baselines3")),
    "runs.environments": Room(("config", "runtime", f"{RL}.core", f"{RL}.preprocessing"), ENV_LIBRARIES),
    SB3: Room(
        ("config", "runtime", "monitoring", RL, "integrations"),
        (*TORCH_LIBRARIES, "stable_baselines3"),
        ("sb3_contrib",),
    ),
    "runs": Room(
        ("config", "runtime", "monitoring", "reporting", RL, TRADING, "runs.environments"),
        (*TORCH_LIBRARIES, "tyro", "psutil"),
        ("matplotlib", "ray", SB3),
    ),
    # The parts of the command `train`.
    "runs.commands": Room(("config", "runtime", "monitoring", RL, "runs")),
    "runs.trained": Room(
        ("config", "runtime", "monitoring", RL, TRADING, "runs", SB3),
        (*TORCH_LIBRARIES, "tyro"),
        ("onnxruntime", "onnxscript", "av", "PIL"),
    ),
    "experiments": Room(
        ("config", "runtime", "monitoring", "reporting", RL, TRADING, "runs"),
        ("numpy", "gymnasium", "tyro"),
        ("matplotlib",),
    ),
    "service.free_memory": Room((), ("psutil",)),
    "service.limits": Room(("config",)),
    "service.env_pool": Room(("config", f"{RL}.core"), ("gymnasium",)),
    "service.vectorized_env_config": Room(("config", "runs"), ("pydantic",)),
    "service.agent": Room(
        (
            *("config", "runtime", "monitoring", RL, TRADING, "runs"),
            *("service.free_memory", "service.vectorized_env_config"),
        ),
        ("numpy", "gymnasium", "psutil"),
    ),
    "service.run": Room(("config", "runtime", "monitoring", "runs")),
    "service.queue": Room(("config", "runtime", TRADING, "runs", "service.vectorized_env_config")),
    "service.scheduling": Room(
        (
            *("config", "runtime", "monitoring", "runs"),
            *(f"service.{room}" for room in ("free_memory", "limits", "env_pool", "run", "queue")),
        )
    ),
    "service": Room(
        (
            *("config", "runtime", "monitoring", RL, TRADING, "runs"),
            *(f"service.{module}" for module in ("free_memory", "limits", "env_pool", "vectorized_env_config")),
            *(f"service.{room}" for room in ("agent", "run", "queue", "scheduling")),
        ),
        ("numpy", "gymnasium"),
    ),
    "service.control": Room(
        ("config", "runtime", "runs", "service.queue", "service.scheduling", "service.agent_training_service")
    ),
    # What a study's files are called: read without Optuna.
    f"{TUNING}.study_files": Room(GROUND, lazy=("optuna",)),
    # The parts of the command `submit`.
    "service.commands": Room(("config", "runtime", RL, TRADING, "runs", f"{TUNING}.study_files"), ("gymnasium",)),
    SELECTION: Room(("config.errors",), ("numpy",)),
    TUNING: Room(
        (
            *("config", "runtime", "monitoring", "reporting", RL, TRADING, "runs", "service", SELECTION),
            f"{TUNING}.study_files",
        ),
        ("numpy", "gymnasium", "tyro", "optuna", "sqlalchemy"),
        ("torch", "matplotlib", "psycopg", "cmaes"),
    ),
    # What a broker is: values and a protocol.
    f"{LIVE}.brokers": Room((*GROUND, f"{TRADING}.market"), ("numpy",)),
    f"{LIVE}.brokers.simulated": Room((*GROUND, TRADING, f"{LIVE}.brokers"), ("numpy",)),
    f"{LIVE}.feeds": Room((*GROUND, "config", TRADING, f"{LIVE}.brokers"), ("numpy", "tyro"), ("polars",)),
    # alpaca-py is an extra, and takes seconds to import: a function imports it where a session names it.
    ALPACA: Room(
        ("config", "runtime", TRADING, f"{LIVE}.brokers", f"{LIVE}.feeds"),
        ("numpy",),
        ("alpaca", "keyring", "requests"),
    ),
    f"{LIVE}.decisions": Room(("config", "runtime", RL, TRADING, "runs"), ("numpy", "gymnasium")),
    f"{LIVE}.guards": Room((*GROUND, "config", TRADING, f"{LIVE}.brokers"), ("numpy",)),
    f"{LIVE}.retraining": Room(
        ("config", "runtime", "monitoring", "reporting", RL, TRADING, "runs", TUNING),
        ("numpy", "tyro"),
        ("polars",),
    ),
    LIVE: Room(
        ("config", "runtime", "monitoring", "reporting", RL, TRADING, "runs", LIVE),
        ("numpy", "tyro"),
        (f"{ALPACA}.account.open_account", f"{ALPACA}.market_data.alpaca_feed", "polars", "keyring"),
    ),
    "dashboard": Room(
        ("config", "runtime", "monitoring", "reporting", "runs", f"{TUNING}.study_files", f"{LIVE}.session_files"),
        ("numpy", "rich", "tyro"),
        ("polars",),
    ),
    # The web server's libraries are an extra: the terminal's tables and the summaries go without.
    "dashboard.web": Room(
        ("config", "monitoring", "reporting", "runs.folder", f"{LIVE}.session_files", "dashboard"),
        ("starlette", "uvicorn"),
    ),
    "dashboard.server": Room(("config", "dashboard"), (), ("dashboard.web", "uvicorn")),
}
# Commands may import anything, and nothing may import them.
COMMANDS = (
    *(
        "train_ppo",
        "evaluate_ppo",
        "backtest",
        "enjoy",
        "compare",
        "export_policy",
        "tune_workers",
        "compile_kernels",
        "test_parallel_env",
    ),
    *("cli", "__main__", "commands", "completion"),
    *(f"service.commands.{name}" for name in ("serve", "submit", "logs", "stop", "resume", "scale")),
    "dashboard.commands.dashboard",
    *(f"tuning.commands.{name}" for name in ("tune", "report", "promote", "rollback", "models")),
    "live.commands.paper_trade",
    *("trading.inspect_data", "experiments.sanity", "experiments.walk_forward"),
    *("dashboard.commands.status", "dashboard.commands.watch"),
    *("trading.sanity", "trading.walk_forward"),  # the older names of two of them
)
# Only these print besides commands: what they show on a terminal, and the parts of one command.
VERSION = "__version__"  # of the package itself, which no arrow is about
PRINTING = (
    *("config.flag_help", "monitoring.console", "monitoring.run_console"),
    *(f"runs.commands.{name}" for name in ("train_run", "train_as_rank", "launch_ranks")),
)
# Only these install signal handlers besides commands: a context manager that the trainer enters in the main thread
# where nobody else handles Ctrl-C, what commands begin with, and worker processes, which ignore it.
WARM = f"{RL}.core.workers.warm"
SIGNALLING = (
    f"{RL}.algorithms.interruption",
    "runtime.interrupts",
    f"{RL}.core.workers.main",
    *(f"{WARM}.{name}" for name in ("pool_process", "worker", "wipe")),
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


def room_of(module: str) -> str | None:
    """The deepest room that a module lies in."""
    return max((room for room in ROOMS if is_below(module, room)), key=len, default=None)


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


def broken_arrows(sources: Mapping[str, str]) -> list[str]:
    """A sentence for each import, in modules by name, that the table forbids."""
    broken = []
    for module, source in sources.items():
        name_of_room = room_of(module)
        if name_of_room is None or module in COMMANDS:
            continue
        room = ROOMS[name_of_room]
        for name, at_once, _ in imports_of(source):
            if name.split(".")[0] in sys.stdlib_module_names or name == VERSION:
                continue
            is_lazy = is_below(name, *room.lazy)
            is_allowed = is_lazy or room_of(name) == name_of_room or is_below(name, *room.below, *room.at_once)
            if not is_allowed or is_below(name, *COMMANDS):
                broken.append(f"{module} imports {name}")
            elif at_once and is_lazy:
                broken.append(f"{module} imports {name} at once")
        if reads_argv(source):
            broken.append(f"{module} reads sys.argv")
        broken += touches_the_terminal(module, source)
    return broken


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


def test_the_table_itself_goes_from_the_ground_up():
    names = list(ROOMS)
    for i, (name, room) in enumerate(ROOMS.items()):
        for below in (*room.below, *(lazy for lazy in room.lazy if room_of(lazy))):
            assert is_below(below, *names[:i]) or any(is_below(each, below) for each in names[:i]) or below == name


def test_nothing_in_a_worker_process_reaches_torch(sources):
    assert torch_in_workers(sources) == []


def test_importing_a_package_imports_nothing_else():
    filled = [path for path in PACKAGE.rglob("__init__.py") if path.read_text()]
    assert sorted(filled) == [PACKAGE / "__init__.py", PACKAGE / "service" / "__init__.py"]  # lazily: see test_init.py


@pytest.mark.parametrize("name", [*ROOMS, *IN_WORKERS, *COMMANDS, *PRINTING, *SIGNALLING])
def test_what_the_rules_name_is_there(sources, name):
    assert name in sources


def test_every_folder_has_its_rules(sources):
    rooms = {module for module in sources if any(is_below(other, module) and other != module for other in sources)}
    assert {room for room in rooms if room_of(room) is None} == {"models", "models.rl"}  # which hold rooms alone


@pytest.mark.parametrize(
    ("module", "source", "sentence"),
    [
        (f"{RL}.rollout.gae", "import ml_pipeline.trading.task", "imports trading.task"),
        (f"{RL}.rollout.gae", "def f():\n  import polars", "imports polars"),
        (f"{RL}.rollout.gae", "from yaml import load", "imports yaml.load"),
        (f"{RL}.policies.policy", "import ml_pipeline.models.rl.compiled", f"imports {COMPILED} at once"),
        (f"{RL}.networks.mlp", "from ml_pipeline.models.rl.policies import x", f"imports {RL}.policies.x"),
        ("trading.envs.fast", "from ml_pipeline.models.rl import networks", "imports models.rl.networks"),
        ("trading.envs.fast", "import torch", "imports torch"),
        ("trading.envs.fast", "def f():\n  import torch", "imports torch"),
        ("trading.envs.fast", f"from ml_pipeline.{TENSORS} import X", f"imports {TENSORS}.X at once"),
        ("trading.envs.fast", f"import ml_pipeline.{COMMANDS[0]}", f"imports {COMMANDS[0]}"),
        ("trading.task", "import ml_pipeline.trading.inspect_data", "imports trading.inspect_data"),
        ("trading.task", "import ml_pipeline.config.files", "imports config.files"),
        ("trading.market.files", "import polars as pl", "imports polars at once"),
        ("trading.evaluation.page", "class A:\n  import matplotlib.pyplot", "imports matplotlib.pyplot at once"),
        ("config.ppo", "from ml_pipeline.monitoring import sink", "imports monitoring.sink"),
        ("config.ppo", "from ml_pipeline import train_ppo", "imports train_ppo"),
        ("config.ppo", "import torch", "imports torch"),
        ("monitoring.sink", "from ml_pipeline.config.ppo import X", "imports config.ppo.X"),
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
def test_an_arrow_that_points_up_is_found(module, source, sentence):
    assert broken_arrows({module: source}) == [f"{module} {sentence}"]


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
def test_an_arrow_that_points_down_is_fine(module, source):
    assert broken_arrows({module: source}) == []


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
