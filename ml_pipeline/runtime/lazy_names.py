"""Lazy public names of a package: each is imported at its first use, so importing the package itself stays cheap."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(package: str, source: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package for the names that its `__init__` imports for type checkers.

    package: its `__name__`. source: its `__file__`; the `if TYPE_CHECKING` block there is the only list of names.
    """

    @cache
    def modules() -> dict[str, str]:
        import ast  # here: every worker process imports a package, but few use a public name
        from pathlib import Path

        nodes = ast.parse(Path(source).read_text(encoding="utf-8")).body
        checked = [each for node in nodes if isinstance(node, ast.If) for each in node.body]
        return {
            name.name: str(each.module) for each in checked if isinstance(each, ast.ImportFrom) for name in each.names
        }

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules()[name]), name)

    return get, lambda: sorted({*vars(import_module(package)), *modules()})
