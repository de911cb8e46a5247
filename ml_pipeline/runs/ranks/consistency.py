"""What must be the same on all ranks before they train, and the sentence about what is not."""

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ml_pipeline import __version__
from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.models.rl.distributed.ranks import Ranks, RanksDiffer
from ml_pipeline.runs.ranks.context import RankContext, SharedError
from ml_pipeline.runs.task_identity import describe_task
from ml_pipeline.runs.tasks import Task

_PACKAGES = ("numpy", "gymnasium", "numba")  # what computes besides torch
_LONGEST = 100


class DifferentRanks(RanksDiffer, SharedError):
    """Ranks that cannot train together, as all of them know."""


def this_machine() -> dict[str, str]:
    """The versions and the kind of processor, which results depend on, by their names."""
    facts = {"ml_pipeline": __version__, "Python": platform.python_version(), "torch": torch.__version__}
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    facts["the system"] = f"{sys.platform} {platform.machine()}"
    facts["the processor's instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def require_same(ranks: RankContext, what: str, own: Mapping[str, Any], *, remedy: str) -> None:
    """Compare values by name over all ranks. what: names the exchange. remedy: the end of the sentence.

    Raises DifferentRanks on every rank, which names the first value that differs and where.
    """
    everybody = ranks.gather(what, dict(own))
    for rank, values in enumerate(everybody):
        for name in {**everybody[0], **values}:
            here, there = everybody[0].get(name, _ABSENT), values.get(name, _ABSENT)
            if here != there:
                raise DifferentRanks(
                    f"Ranks must agree on {name}, but {ranks.name(0)} has {_shown(here)} and {ranks.name(rank)} has "
                    f"{_shown(there)}; {remedy}"
                )


_ABSENT = "none given"


def _shown(value: Any) -> str:
    return in_one_line(written(tuple(value) if isinstance(value, list) else value), _LONGEST)


def require_same_machines(ranks: RankContext) -> None:
    """Raise DifferentRanks, on every rank, where two have other versions or another kind of processor."""
    require_same(ranks, "the versions", this_machine(), remedy="install the same versions on all machines.")


def require_same_task(ranks: RankContext, task: Task) -> None:
    """Raise DifferentRanks, on every rank, where the data or the environment's code of two differ."""
    described: dict[str, Any] = {}
    for name, value in describe_task(task).items():
        described.update(
            {f"{name} of {key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    require_same(ranks, "the data", described, remedy="give all ranks the same data and code.")


def consistent(group: Ranks, task: Task) -> RankContext:
    """A group whose ranks have the same versions and data. Raises DifferentRanks, on all, where they have not."""
    ranks = RankContext(group)
    require_same_machines(ranks)
    require_same_task(ranks, task)
    return ranks


def require_same_spaces(ranks: RankContext, envs: VectorEnv) -> None:
    """Raise DifferentRanks, on every rank, where the environments of two have other spaces."""
    spaces = {
        "the observation space": repr(envs.single_observation_space),
        "the action space": repr(envs.single_action_space),
    }
    require_same(ranks, "the spaces", spaces, remedy="install the same version of the environment on all machines.")
