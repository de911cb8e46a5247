"""What a task is learned from, as texts that two machines can compare."""

import hashlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium

from ml_pipeline.runs.environments.ids import import_module_of
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.tasks import Task
from ml_pipeline.trading.symbols_task import SymbolsTask
from ml_pipeline.trading.task import TradingTask


def describe_task(task: Task) -> dict[str, Any]:
    """What is learned, and a fingerprint of what it is learned from: of two machines they are equal, or differ."""
    if isinstance(task, SymbolsTask):
        each = {symbol: one.fingerprint for symbol, one in task.tasks.items()}
        return {"kind": "trading, one account per symbol", "symbols": [*task.symbols], "data": each}
    if isinstance(task, TradingTask):
        market = task.market
        return {
            "kind": "trading",
            "symbols": [*market.symbols],
            "bars": market.n_bars,
            "data": task.fingerprint,
        }
    if isinstance(task, GymTask):
        return {"kind": "Gymnasium", "environment": task.env_id, "code": describe_environment(task.env_id)}
    return {"kind": f"{type(task).__module__}.{type(task).__qualname__}", "name": task.name}


def describe_environment(env_id: str) -> str:
    """Whose code a Gymnasium environment is: a package and its version, or a fingerprint of the module that has it.

    Raises UserError where the module that the id names cannot be imported.
    """
    import_module_of(env_id)  # which registers it: else it would look like Gymnasium's own until it is first made
    module = _module_of(env_id)
    if module is None:
        return f"gymnasium {gymnasium.__version__}"
    package = module.partition(".")[0]
    for distribution in _distributions().get(package, ()):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    try:
        found = importlib.util.find_spec(module)
        content = Path(str(found and found.origin)).read_bytes()
    except (ImportError, OSError, ValueError):
        return module
    return f"{module}, {hashlib.blake2b(content, digest_size=8).hexdigest()}"


@cache
def _distributions() -> Mapping[str, list[str]]:
    """By package, what installed it; kept, since it reads a file of everything that is installed: a second."""
    return importlib.metadata.packages_distributions()


def _module_of(env_id: str) -> str | None:
    try:
        entry_point = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    except gymnasium.error.Error:
        return None
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    found = inspect.getmodule(entry_point)
    return None if found is None else found.__name__
