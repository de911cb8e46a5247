"""How several ranks begin one training: they compare what they were given, and the first says what it comes to."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import flatten
from ml_pipeline.models.rl.policies.device_choice import choose_device
from ml_pipeline.runs.ranks.consistency import require_same, require_same_machines, require_same_task
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.ranks.relaunch import LeftRun, left_run
from ml_pipeline.runs.tasks import Task, make_task
from ml_pipeline.runs.train_command_line import TrainFlags, TrainStart, train_start
from ml_pipeline.runs.train_config import USUAL_WITH_RANKS, TrainConfig, layered, train_config

# How a rank steps its environments is its machine's own affair, and paths may differ between machines.
# The kind of device is compared apart, with what it is by default: a GPU computes other last bits than a CPU.
_OWN = OF_LAUNCH | {"n_workers", "parallel_start_method", "step_timeout_s", "device"}


def start_of_ranks(flags: TrainFlags, ranks: RankContext, place: RankInfo) -> tuple[TrainStart, Task]:
    """What all ranks train, and the task as this rank has it.

    Ranks that were started again after one was lost go on with the run that they left. Raises SharedError where they
    differ in settings, versions, the kind of device or data, and where anything cannot be used.
    """
    require_same_machines(ranks)
    require_same(ranks, "the settings", _compared(flags), remedy="start all ranks by the same command.")
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
    """What was given to this rank, by name."""
    given: dict[str, Any] = {
        name: value for name, value in flags.given.items() if name not in _OWN and not isinstance(value, Path)
    }
    return {**given, "resume": flags.resume, "the seed": given.get("seed", 0)}


def _start(flags: TrainFlags, ranks: RankContext, left: LeftRun | None) -> TrainStart:
    """On the first rank, which has the run folder."""
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
        sentences.append(f"The {ranks.size} processes go on with the run that was left in {left.folder}.")
    elif start.checkpoint is None and start.config.ppo.normalize_obs and "normalize_update" not in flags.given:
        sentences.append(
            "Several processes update the statistics of observations after each rollout; one process has the same "
            "weights with --normalize-update rollout."
        )
    n_processes = flags.given.get("n_processes", ranks.size)
    if n_processes != ranks.size:
        sentences.append(f"--n-processes is {n_processes}, but {ranks.size} were started, and these count.")
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
