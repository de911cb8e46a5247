"""The user's own features and rewards: found by name, and told apart from ours where they fail."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from ml_pipeline.config.errors import UserError


def import_by_name(name: str) -> Any:
    """What "module:name" names. Raises UserError where it cannot be imported."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        remedy = "name it as module:name, with its folder on PYTHONPATH"
        raise UserError(f"{name} cannot be imported: {error}; {remedy}.") from error


def call_user_code(name: str, function: Callable[[Any], Any], argument: Any) -> Any:
    """What the function gives. Raises UserError where it fails, with its place."""
    try:
        return function(argument)
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}".rstrip(".")
        raise UserError(f"{name} failed in line {place.lineno} of {Path(place.filename).name}: {said}.") from error
