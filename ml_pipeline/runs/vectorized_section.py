"""Vectorized settings under other libraries' names: sections `vectorized` and `training.vectorized_training`.

`n_envs: null` (or `num_envs: null`) chooses the number: `train` uses one environment per core, and a `TrainerAgent`
measures a step.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.sections import Flat, Reader, section
from ml_pipeline.runtime.cores import usable_cores

EnvType = Literal["DummyVecEnv", "SubprocVecEnv", "auto", "batched"]
MOST_ENVS = 8
"""Default of max_concurrent_envs."""
_USUAL_ENVS = 4


def vec_env_settings(env_type: EnvType) -> Flat:
    """The flat settings of an environment type.

    >>> vec_env_settings("DummyVecEnv"), vec_env_settings("auto")
    ({'vec_env': 'DummyVecEnv'}, {})
    """
    return {} if env_type == "auto" else {"vec_env": env_type}


def too_many(name: str, n_envs: int, most: int) -> UserError:
    """The error for n_envs above max_concurrent_envs."""
    return UserError(
        f"{name} is {n_envs}, but max_concurrent_envs is {most}; raise max_concurrent_envs in the section vectorized "
        f"to {n_envs}, or lower {name}."
    )


def read_vectorized(value: Any, source: Path) -> Flat:
    """Read env_type and, if given, num_envs, and check its limit; monitoring is for `TrainerAgent`."""
    found = section("vectorized", _VECTORIZED)(value, source)
    env_type, most = found.get("env_type", "auto"), found.get("most", MOST_ENVS)
    if env_type not in get_args(EnvType):
        expected = ", ".join(get_args(EnvType))
        hint = did_you_mean(str(env_type), get_args(EnvType))
        raise UserError(f'{source}: env_type must be one of {expected}, but got "{env_type}".{hint}')
    _check_count("max_concurrent_envs", most, source)
    flat = vec_env_settings(env_type)
    if "num_envs" not in found:
        return flat
    if (n_envs := found["num_envs"]) is not None:
        _check_count("num_envs", n_envs, source)
        if n_envs > most:
            raise UserError(f"{source}: {too_many('num_envs', n_envs, most)}")
    return {**flat, "n_envs": n_envs}


def with_number(flat: Flat, vectorized: Any, source: Path, *, count_envs: bool) -> Flat:
    """The settings of a file, with the number of environments filled in.

    vectorized: the section, or None. Its max_concurrent_envs also limits a number from another section.
    count_envs: if the number is null, use `one_per_core`; False leaves it out.
    """
    most = MOST_ENVS
    if vectorized is not None:
        most = section("vectorized", _VECTORIZED)(vectorized, source).get("most", MOST_ENVS)
        flat = {"n_envs": min(_USUAL_ENVS, most), **flat}
        n_envs = flat["n_envs"]
        if isinstance(n_envs, int) and n_envs > most:
            raise UserError(f"{source}: {too_many('n_envs', n_envs, most)}")
    if "n_envs" in flat and flat["n_envs"] is None:
        rest = {name: value for name, value in flat.items() if name != "n_envs"}
        return {**rest, "n_envs": one_per_core(rest, most)} if count_envs else rest
    return flat


def without_vectorized_training(content: Mapping[Any, Any], source: Path) -> tuple[Mapping[Any, Any], Flat]:
    """A configuration without `training.vectorized_training`, and the flat settings of that section."""
    training = content.get("training")
    if not isinstance(training, Mapping) or "vectorized_training" not in training:
        return content, {}
    value = training["vectorized_training"]
    rest = {key: inner for key, inner in training.items() if key != "vectorized_training"}
    return {**content, "training": rest}, _vectorized_training({} if value is None else value, source)


def _vectorized_training(value: Any, source: Path) -> Flat:
    """Flat settings of the section. enabled: false means one environment per symbol, stepped in turn."""
    found = section("vectorized_training", _TRAINING)(value, source)
    for name in ("enabled", "use_shared_memory"):
        if not isinstance(found.setdefault(name, True), bool):
            raise UserError(f"{source}: {name} must be true or false, but got {found[name]!r}.")
    symbols = found.get("symbols") or []
    if isinstance(symbols, str) or not isinstance(symbols, list | tuple):
        raise UserError(f'{source}: symbols must be a list such as ["EURUSD"], but got {symbols!r}.')
    flat: Flat = {"symbols": list(symbols), "per_symbol": True} if symbols else {}
    if found.get("data_dir") is not None:
        flat["data"] = found["data_dir"]
    if not found["enabled"]:
        return {**flat, "n_envs": max(1, len(symbols)), "vec_env": "serial"}
    if (n_envs := found.get("n_envs")) is not None:
        _check_count("n_envs", n_envs, source)
    return {**flat, "n_envs": n_envs}


def one_per_core(flat: Mapping[str, Any], most: int = MOST_ENVS) -> int:
    """The number of environments for null: one per core up to `most`, in multiples of the number of symbols.

    >>> one_per_core({"symbols": list("ABCDEFGHIJ"), "per_symbol": True})
    10
    """
    most = min(most, max(1, int(usable_cores())))
    n_symbols = len(flat.get("symbols") or ()) if flat.get("per_symbol") else 1
    return max(1, n_symbols) * max(1, most // max(1, n_symbols))


def _check_count(name: str, number: Any, source: Path) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UserError(f"{source}: {name} must be a whole number of at least 1, but got {number!r}.")


_VECTORIZED: dict[str, Reader] = {
    "env_type": lambda value, source: {"env_type": value},
    "num_envs": lambda value, source: {"num_envs": value},
    "max_concurrent_envs": lambda value, source: {"most": value},
    "enable_monitoring": lambda value, source: {},
}
_TRAINING: dict[str, Reader] = {
    "enabled": lambda value, source: {"enabled": value},
    "n_envs": lambda value, source: {"n_envs": value},
    "use_shared_memory": lambda value, source: {"use_shared_memory": value},
    "symbols": lambda value, source: {"symbols": value},
    "data_dir": lambda value, source: {"data_dir": value},
}
