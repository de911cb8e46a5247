"""Starts one training on several ranks: they compare what must be equal, and the first one decides the rest."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ml_pipeline import __version__
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.models.rl.policies.threads_and_device import choose_device
from ml_pipeline.models.rl.ranks import Ranks, RanksDiffer
from ml_pipeline.runs.ranks.context import RankContext, SharedError
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.ranks.relaunch import LeftRun, left_run
from ml_pipeline.runs.tasks import Task, describe_task, make_task
from ml_pipeline.runs.train_command_line import TrainFlags, TrainStart, train_start
from ml_pipeline.runs.train_config import USUAL_WITH_RANKS, TrainConfig, layered, train_config

# How a rank steps its environments is local to its machine, and paths may differ between machines.
# The kind of device is compared separately, after its default is set: GPU and CPU differ in the last bits.
_OWN = OF_LAUNCH | {"n_workers", "parallel_start_method", "step_timeout_s", "device"}


def start_of_ranks(flags: TrainFlags, ranks: RankContext, place: RankInfo) -> tuple[TrainStart, Task]:
    """The start that all ranks share, and this rank's task.

    Ranks that were restarted after a loss continue the run that they left. Raises SharedError if they differ in
    settings, versions, kind of device or data, and if anything is unusable.
    """
    require_same_machines(ranks)
    require_same(ranks, "the settings", _compared(flags), remedy="start all ranks with the same command.")
    folder = flags.given.get("checkpoint_dir")
    left = left_run(ranks, place, folder)
    start: TrainStart | None = None

    def start_of_first() -> TrainStart:
        return _start(flags, ranks, left)

    start = ranks.first("the settings", start_of_first, send=_as_plain)
    if not isinstance(start, TrainStart):
        start = ranks.each("the settings", lambda: _from_plain(start, flags))  # type: ignore[arg-type]
    else:
        ranks.each("the settings", lambda: None)
    config = start.config
    device = ranks.each("the device", lambda: choose_device(config.run.device))
    kind = {"the kind of device": device.partition(":")[0]}
    require_same(ranks, "the devices", kind, remedy="pass the same --device to all ranks.")
    task = ranks.each("the data", lambda: make_task(config))
    require_same_task(ranks, task)
    return start, task


def _compared(flags: TrainFlags) -> dict[str, Any]:
    """This rank's given settings, by name."""
    given: dict[str, Any] = {
        name: value for name, value in flags.given.items() if name not in _OWN and not isinstance(value, Path)
    }
    return {**given, "resume": flags.resume, "the seed": given.get("seed", 0)}


def _start(flags: TrainFlags, ranks: RankContext, left: LeftRun | None) -> TrainStart:
    """The start, on the first rank: it has the run folder."""
    if left is None:
        started = flags if flags.resume else replace(flags, given=layered(USUAL_WITH_RANKS, flags.given))
        start = train_start(started)
    elif left.checkpoint is None:
        given = layered(USUAL_WITH_RANKS, flags.given, {"checkpoint_dir": left.folder})
        start = train_start(replace(flags, given=given))
    else:
        given = {name: value for name, value in flags.given.items() if name != "checkpoint_dir"}
        start = train_start(replace(flags, given=given, resume=str(left.checkpoint)))
    return replace(start, notice=" ".join(filter(None, [start.notice, _notice(flags, ranks, start, left)])) or None)


def _notice(flags: TrainFlags, ranks: RankContext, start: TrainStart, left: LeftRun | None) -> str:
    sentences = []
    if left is not None and left.checkpoint is not None:
        sentences.append(f"The {ranks.size} processes resume the run that was left in {left.folder}.")
    elif start.checkpoint is None and start.config.ppo.normalize_obs and "normalize_update" not in flags.given:
        sentences.append(
            "Several processes update observation statistics after each rollout; one process gets the same "
            "weights with --normalize-update rollout."
        )
    n_processes = flags.given.get("n_processes", ranks.size)
    if n_processes != ranks.size:
        sentences.append(f"--n-processes is {n_processes}, but {ranks.size} were started; using {ranks.size}.")
    return " ".join(sentences)


def _as_plain(start: TrainStart) -> dict[str, Any]:
    return {
        "config": flatten(start.config),
        "checkpoint": None if start.checkpoint is None else str(start.checkpoint),
        "trust_checkpoint": start.trust_checkpoint,
    }


def _from_plain(sent: Mapping[str, Any], flags: TrainFlags) -> TrainStart:
    """The first rank's start with this rank's own paths and workers."""
    own = {name: value for name, value in flags.given.items() if name in _OWN or isinstance(value, Path)}
    settings = {**convert_settings(sent["config"], TrainConfig, source=Path("rank 0")), **own}
    return TrainStart(
        config=train_config(settings),
        checkpoint=None if sent["checkpoint"] is None else Path(sent["checkpoint"]),
        trust_checkpoint=sent["trust_checkpoint"],
    )


_PACKAGES = ("numpy", "gymnasium", "numba")  # compute besides torch
_LONGEST = 100


class DifferentRanks(RanksDiffer, SharedError):
    """Ranks that cannot train together; raised on all of them."""


def this_machine() -> dict[str, str]:
    """Versions and kind of processor, which results depend on, by name."""
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
    """Compare values by name over all ranks. what: name of the call. remedy: the end of the message.

    Raises DifferentRanks on every rank, naming the first value that differs and where.
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
    """Raise DifferentRanks, on every rank, if versions or kinds of processor differ."""
    require_same(ranks, "the versions", this_machine(), remedy="install the same versions on all machines.")


def require_same_task(ranks: RankContext, task: Task) -> None:
    """Raise DifferentRanks, on every rank, if data or the environment's code differ."""
    described: dict[str, Any] = {}
    for name, value in describe_task(task).items():
        described.update(
            {f"{name} of {key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    require_same(ranks, "the data", described, remedy="give all ranks the same data and code.")


def consistent(group: Ranks, task: Task) -> RankContext:
    """A group whose ranks have the same versions and data. Raises DifferentRanks, on all, if they differ."""
    ranks = RankContext(group)
    require_same_machines(ranks)
    require_same_task(ranks, task)
    return ranks


def require_same_spaces(ranks: RankContext, envs: VectorEnv) -> None:
    """Raise DifferentRanks, on every rank, if the spaces of their environments differ."""
    spaces = {
        "the observation space": repr(envs.single_observation_space),
        "the action space": repr(envs.single_action_space),
    }
    require_same(ranks, "the spaces", spaces, remedy="install the same version of the environment on all machines.")
