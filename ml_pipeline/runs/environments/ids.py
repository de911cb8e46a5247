"""Errors for an environment id that cannot be made: what to install, and which ids and keywords exist."""

import difflib
import inspect
import pkgutil
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.runtime.user_code import failed_import, import_user_module

_N_NEAREST, _NEAR = 3, 0.6
_NEAR_ALONE = 0.65  # similarity without the versions


class _Package(NamedTuple):
    """A package of environments: the command that installs it, and the prefixes of its environment names."""

    install: str
    names: tuple[str, ...]


_PACKAGES = {
    "ale_py": _Package("pip install ale-py opencv-python-headless", ("ALE/",)),
    "minigrid": _Package("pip install minigrid", ("MiniGrid-", "BabyAI-")),
    "miniworld": _Package("pip install miniworld", ("MiniWorld-",)),
    "highway_env": _Package(
        "pip install highway-env", ("highway-", "merge-", "roundabout-", "parking-", "intersection-")
    ),
    "gymnasium_robotics": _Package(
        "pip install gymnasium-robotics", ("Fetch", "HandReach", "HandManipulate", "PointMaze_", "AntMaze_", "Adroit")
    ),
    "panda_gym": _Package(
        "pip install panda-gym", ("PandaReach", "PandaPush", "PandaSlide", "PandaPickAndPlace", "PandaStack")
    ),
    "mo_gymnasium": _Package("pip install mo-gymnasium", ("mo-", "deep-sea-treasure-", "minecart-", "four-room-")),
    "flappy_bird_gymnasium": _Package("pip install flappy-bird-gymnasium", ("FlappyBird-",)),
    "gym_anytrading": _Package("pip install gym-anytrading", ("stocks-v", "forex-v")),
    "tetris_gymnasium.envs": _Package("pip install tetris-gymnasium", ("tetris_gymnasium/",)),
    "PyFlyt.gym_envs": _Package("pip install PyFlyt", ("PyFlyt/",)),
}
_OLD_ATARI = re.compile(r"(\w+?)(?:-ram)?(?:NoFrameskip|Deterministic)-v\d+")


def import_module_of(env_id: str) -> None:
    """Import the module before the colon of an id. Raises UserError, with the install command if known."""
    module, _, _ = env_id.rpartition(":")
    if module in _PACKAGES and find_spec(module.partition(".")[0]) is None:
        raise UserError(f"{env_id} needs {module}, which is not installed; {_PACKAGES[module].install}.")
    if module:
        import_user_module(module)


def check_registered(env_id: str) -> None:
    """Raise UserError if no environment has this id; import its module first."""
    try:
        gymnasium.spec(_with_version(env_id.rpartition(":")[2]))
    except gymnasium.error.Error as error:
        if told := id_error(env_id, error):
            raise told from error


def id_error(env_id: str, error: Exception) -> UserError | None:
    """The error for an id that Gymnasium could not make; None if `error` has another cause.

    error: what `gymnasium.make` raised.
    """
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        said = " ".join(str(error).split()).rstrip(".")
        if "opencv" in said:
            said = f"opencv-python-headless is not installed; {_PACKAGES['ale_py'].install}"
        return UserError(f"{env_id} cannot be made: {said}.")
    if isinstance(error, ImportError):  # in the module of its class, or in its constructor
        return UserError(f"{env_id} cannot be made: {failed_import(error)}")
    unknown = gymnasium.error.UnregisteredEnv | gymnasium.error.DeprecatedEnv
    if isinstance(error, unknown) or type(error) is gymnasium.error.Error:  # the last one: a malformed id
        return UserError(f'There is no environment "{env_id}". {_hint(env_id)}')
    return None


def keyword_error(env_id: str, error: Exception, given: Mapping[str, Any]) -> UserError | None:
    """The error for a keyword that the environment does not take; None if `error` has another cause."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if not isinstance(error, TypeError) or found is None or found[1] not in given:
        return None
    try:
        known = _keywords(env_id)
    except Exception:  # the entry point cannot be imported, or its signature cannot be read
        return None
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    return UserError(f'{env_id} has no keyword "{found[1]}"; {takes}.{did_you_mean(found[1], known)}')


def _keywords(env_id: str) -> list[str]:
    """The keywords of an environment's constructor, including those that it passes to its base classes."""
    entry_point: Any = gymnasium.spec(_with_version(env_id.rpartition(":")[2])).entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    names: dict[str, None] = {}
    for constructor in creator.__mro__ if isinstance(creator, type) else [creator]:
        function = vars(constructor).get("__init__") if isinstance(constructor, type) else constructor
        if function is None or constructor is object:
            continue
        parameters = inspect.signature(function).parameters.values()
        named = (each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
        names.update(dict.fromkeys(name for name in named if name not in ("self", "render_mode")))
        if not any(each.kind == each.VAR_KEYWORD for each in parameters):
            break
    return list(names)


def _with_version(name: str) -> str:
    """The registered name: without a version, the newest, as in `gymnasium.make`."""
    namespace, base, version = parse_env_id(name)
    return get_env_id(namespace, base, find_highest_version(namespace, base) if version is None else version)


def _hint(env_id: str) -> str:
    module, colon, name = env_id.rpartition(":")
    registers = f"The module {module} exists but does not register it. " if colon else ""
    if colon and (deeper := _module_that_registers(module, name)):
        return f"{registers}{deeper} does: {deeper}:{name}."
    if not colon:
        if old := _OLD_ATARI.fullmatch(name):
            return _needs("ale_py", f"ALE/{old[1]}-v5") + " Add --atari for the usual preprocessing."
        for package, (_, beginnings) in _PACKAGES.items():
            if name.startswith(beginnings):
                return _needs(package, name)
    return registers + _nearest(name)


def _needs(package: str, name: str) -> str:
    return f"{_PACKAGES[package].install}, then put its module before a colon: {package}:{name}."


def _module_that_registers(package: str, name: str) -> str | None:
    """The module of a package, such as tetris_gymnasium.envs, that registers this environment name."""
    path = getattr(import_user_module(package), "__path__", None)
    if path is None or name in gymnasium.registry:
        return None
    for module in pkgutil.iter_modules(path, f"{package}."):
        if "env" in module.name.removeprefix(package):
            try:
                import_user_module(module.name)
            except UserError:
                continue
            if name in gymnasium.registry:
                return module.name
    return None


def _unversioned(name: str) -> str:
    """The name alone: sharing a version does not make two ids more alike."""
    return re.sub(r"-v\d+$", "", name)


def _nearest(name: str) -> str:
    by_lower = {known.lower(): known for known in sorted(gymnasium.registry)}
    close = [
        each
        for each in difflib.get_close_matches(name.lower(), by_lower, n=_N_NEAREST, cutoff=_NEAR)
        if difflib.SequenceMatcher(None, _unversioned(name.lower()), _unversioned(each)).ratio() >= _NEAR_ALONE
    ]
    quoted = [f'"{by_lower[each]}"' for each in close]
    if not quoted:
        return "Put the module that registers it before a colon, as in my_project:MyEnv-v0."
    *others, last = quoted
    return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"
