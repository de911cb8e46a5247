"""How many trials run at once, and how they share cores and environments."""

import math
from collections.abc import Mapping
from typing import Any

from ml_pipeline.jobs.budget import Need, need_of

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def jobs_that_fit(settings: Mapping[str, Any], room: Need, *, n_trials: int) -> int:
    """How many trials with these flat settings fit into the room at once; at least one, and not more than n_trials.

    >>> room = Need(runs=math.inf, cores=8.0, memory_mb=2600.0, envs=math.inf)
    >>> jobs_that_fit({"n_envs": 4, "n_workers": 0, "vec_env": "parallel"}, room, n_trials=100)
    5
    >>> jobs_that_fit({"n_envs": 4, "n_workers": 4, "vec_env": "parallel"}, room, n_trials=100)
    2
    >>> jobs_that_fit({"n_envs": 4, "n_processes": 4, "vec_env": "serial"}, room, n_trials=100)
    1
    """
    need = need_of(settings)
    fitting = min(there / each for there, each in zip(room, need, strict=True) if math.isfinite(there))
    return max(1, min(n_trials, math.floor(fitting)))


def settings_of_workers(settings: Mapping[str, Any], *, n_jobs: int, cores: float) -> dict[str, Any]:
    """What trials set besides, where so many share the cores; it changes no result.

    Where each process of a trial has one core, worker processes gain nothing, and measuring how many would pay takes
    half a second of every trial.

    >>> settings_of_workers({"n_workers": "auto", "vec_env": "parallel"}, n_jobs=2, cores=2.0)
    {'n_workers': 0}
    >>> settings_of_workers({"n_workers": "auto", "vec_env": "parallel"}, n_jobs=2, cores=8.0)
    {}
    >>> settings_of_workers({"n_workers": "auto", "vec_env": "parallel", "n_processes": 4}, n_jobs=2, cores=8.0)
    {'n_workers': 0}
    """
    has_choice = settings.get("n_workers", "auto") == "auto" and settings.get("vec_env", "parallel") == "parallel"
    n_processes = n_jobs * settings.get("n_processes", 1)
    return {"n_workers": 0} if has_choice and cores / n_processes < 2 else {}


def threads_of_workers(*, n_processes: int, cores: float) -> dict[str, str]:
    """Environment variables that give each process of all trials its share of the cores, at least one.

    >>> threads_of_workers(n_processes=2, cores=8.0)["OMP_NUM_THREADS"]
    '4'
    """
    return {name: str(max(1, math.floor(cores / n_processes))) for name in _THREADS}
