"""What a warm worker takes over from the process that leases it: all that multiprocessing would have given it."""

import contextlib
import importlib
import multiprocessing
import os
import random
import sys
from collections.abc import Mapping
from multiprocessing import spawn
from typing import Any

import numpy as np

from ml_pipeline.runtime.env_pool_address import ENV_POOL_VARIABLE


def surroundings() -> dict[str, Any]:
    """This process's working directory, sys.path, sys.argv, priority and the like, as plain data.

    Environment variables come with a worker's setup.
    """
    data = spawn.get_preparation_data("env-worker")
    data.pop("init_main_from_path", None)  # no worker runs the user's script again
    data.pop("init_main_from_name", None)
    data["authkey"] = bytes(data["authkey"])
    data["affinity"] = os.sched_getaffinity(0)
    data["niceness"] = os.getpriority(os.PRIO_PROCESS, 0)
    data["umask"] = _umask()
    return data


def enter(data: dict[str, Any]) -> None:
    """Takes over what `surroundings` told in another process; unseeded global generators draw something new."""
    os.environ.clear()  # the setup brings the others
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, data["affinity"])
    with contextlib.suppress(OSError):  # only an administrator may raise it
        os.setpriority(os.PRIO_PROCESS, 0, data["niceness"])
    os.umask(data["umask"])
    spawn.prepare(data)
    multiprocessing.current_process().name = data["name"]
    importlib.invalidate_caches()  # files may have come and gone since
    sys.path_importer_cache.clear()
    random.seed()
    np.random.seed()


def without_pool(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a worker. What its environments start in turn does not wait for the same pool."""
    return {name: value for name, value in environ.items() if name != ENV_POOL_VARIABLE}


def _umask() -> int:
    """Reading it by os.umask would change it for other threads."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
