"""The section `vectorized` of a settings file: environments by the names that Stable-Baselines3 gives their vectors."""

from pathlib import Path
from typing import Any, Literal, get_args

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.sections import Flat, Reader, section
from ml_pipeline.runtime.cores import usable_cores

EnvType = Literal["DummyVecEnv", "SubprocVecEnv", "auto", "batched"]


def vec_env_settings(env_type: EnvType, n_envs: int) -> Flat:
    """The flat settings of an environment type.

    >>> vec_env_settings("DummyVecEnv", 4), vec_env_settings("auto", 4), vec_env_settings("SubprocVecEnv", 1)
    ({'vec_env': 'serial'}, {}, {'n_workers': 1})
    """
    if env_type == "SubprocVecEnv":  # a worker per core: more would only take turns
        return {"n_workers": min(n_envs, max(1, int(usable_cores())))}
    return {"DummyVecEnv": {"vec_env": "serial"}, "batched": {"vec_env": "batched"}}.get(env_type, {})


def read_vectorized(value: Any, source: Path) -> Flat:
    """env_type, num_envs, and the limit that num_envs must keep; monitoring is about a `TrainerAgent`."""
    found = section("vectorized", _VECTORIZED)(value, source)
    env_type, n_envs, most = found.get("env_type", "auto"), found.get("num_envs", 4), found.get("most", 8)
    if env_type not in get_args(EnvType):
        expected = ", ".join(get_args(EnvType))
        hint = did_you_mean(str(env_type), get_args(EnvType))
        raise UserError(f'{source}: env_type must be one of {expected}, but got "{env_type}".{hint}')
    for name, number in (("num_envs", n_envs), ("max_concurrent_envs", most)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UserError(f"{source}: {name} must be a whole number of at least 1, but got {number!r}.")
    if n_envs > most:
        raise UserError(
            f"{source}: num_envs is {n_envs}, but max_concurrent_envs is {most}; lower the first or raise the second."
        )
    return {"n_envs": n_envs, **vec_env_settings(env_type, n_envs)}


_VECTORIZED: dict[str, Reader] = {
    "env_type": lambda value, source: {"env_type": value},
    "num_envs": lambda value, source: {"num_envs": value},
    "max_concurrent_envs": lambda value, source: {"most": value},
    "enable_monitoring": lambda value, source: {},
}
