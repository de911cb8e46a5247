"""Imports and calls a user's code; if that fails, the error names the file and the line."""

import sys
import sysconfig
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import ModuleType
from typing import Any

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.wording import shown_path

_PACKAGE = Path(__file__).resolve().parents[1]


def import_by_name(name: str) -> Any:
    """Import the object "module:name". Raises UserError if it cannot be imported."""
    module_name, _, attribute = name.partition(":")
    module = import_user_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        remedy = did_you_mean(attribute, [each for each in vars(module) if not each.startswith("_")])
        raise UserError(f'{name} cannot be imported: {module_name} has no "{attribute}".{remedy}') from error


def import_user_module(name: str) -> ModuleType:
    """Import a module. Raises UserError; if the module exists but its import fails, with the file and line."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # an import inside the module
            raise UserError(f"{name} cannot be imported: {failed_import(error)}") from error
        raise UserError(
            f'There is no module "{error.name}": run in the folder of {error.name.replace(".", "/")}.py, add that '
            "folder to PYTHONPATH, or install the module."
        ) from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} cannot be imported: {failed_import(error)}") from error


def load_user_file(path: Path) -> ModuleType:
    """Import a Python file from any folder. Raises UserError if it cannot be read or fails."""
    path = path.absolute()
    # A unique name, because the file may be named like a library; dataclasses need the module in sys.modules.
    spec = spec_from_file_location(f"_user_file_{sha256(str(path).encode()).hexdigest()[:16]}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{shown_path(path)} is not a Python file; its name must end in .py.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        if isinstance(error, OSError) and error.filename == str(path):
            raise UserError(f"{shown_path(path)} cannot be read: {error.strerror}.") from error
        raise UserError(f"{shown_path(path)} cannot be imported: {failed_import(error)}") from error
    return module


def failed_import(error: BaseException) -> str:
    """Where an import failed and why, to end a sentence: "line 3 of a.py imports pandaz, which is not there; ..."."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"line {error.lineno} of {shown_path(Path(error.filename))} is not valid Python: {error.msg}."
    places = [each for each in extract_tb(error.__traceback__) if not each.filename.startswith("<frozen importlib")]
    where = f"line {places[-1].lineno} of {shown_path(Path(places[-1].filename))}"
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{where} imports {error.name}, which is not there; install it, or add its folder to PYTHONPATH."
    return f"{where} raised {_message(error)}."


def call_user_code(name: str, function: Callable[[Any], Any], argument: Any) -> Any:
    """Call the function. Raises UserError with the user's file and line if it fails."""
    try:
        return function(argument)
    except (Exception, SystemExit) as error:
        place = innermost_user_line(error)
        raise UserError(
            f"{name} failed in line {place.lineno} of {Path(place.filename).name}: {_message(error)}."
        ) from error


def innermost_user_line(error: BaseException) -> FrameSummary:
    """Where an error was raised: the innermost line outside installed packages and ours, if there is one."""
    frames = extract_tb(error.__traceback__)
    others = [_PACKAGE, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))]
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith("<") and not any(map(Path(frame.filename).is_relative_to, others))
    ]
    return (own or frames)[-1]


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
