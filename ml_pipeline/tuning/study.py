"""The Optuna study that an order means: made or loaded, with its storage, sampler, pruner and identity."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder import refuse_links
from ml_pipeline.runs.train_config import layered, train_config
from ml_pipeline.tuning.config import TuneOrder
from ml_pipeline.tuning.search.pruners import make_pruner
from ml_pipeline.tuning.search.samplers import SeededByTrial, make_sampler, sampler_remark
from ml_pipeline.tuning.search.space import Space, read_space
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import identity_of

LENGTHS = ("total_timesteps", "iterations")
"""Settings that say how long a run is."""


def space_of(order: TuneOrder) -> Space:
    """The search space that is named, or the usual one of what is learned. Raises UserError as `read_space`."""
    usual = "trading" if order.base.get("env_id") is None else "ppo"
    return read_space(order.tune.space or usual)


def steps_per_trial(order: TuneOrder) -> int:
    """Environment steps of a whole trial, over all its seeds or folds."""
    config = train_config(layered(order.base, order.objective.settings))
    return config.timesteps * len(order.objective.units(config))


def make_study(
    order: TuneOrder,
    folder: Path,
    space: Space,
    *,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
    version: str,
) -> optuna.Study:
    """The study, made where there is none of this name, and checked to be the same where there is.

    version: of this program.
    Raises UserError where the storage, the sampler or the pruner cannot be used, or the study is another one.
    """
    from ml_pipeline.runs.tasks import make_task  # with all that a task needs: workers go without
    from ml_pipeline.tuning.study_identity import join_study, study_identity

    if folder.is_dir():
        refuse_links(folder)
    study = _study(order, folder, space, say=say, stopped=stopped)
    if any(folder.glob("trial-[0-9]*")) and not study.get_trials(deepcopy=False):
        raise UserError(
            f"{folder} holds trials of a study whose storage is gone; choose another --study-name, or move the folder "
            "away."
        )
    base = layered(order.base, order.objective.settings)
    if order.tune.continue_trial is not None:
        base, _ = with_length_of_study(study, base)
    identity = study_identity(
        space=space.described(),
        objective=vars(order.objective),
        task=make_task(train_config(base)),
        base=base,
        version=version,
    )
    for sentence in join_study(study, identity):
        say(sentence)
    if remark := sampler_remark(order.tune.sampler, space):
        say(remark)
    return study


def with_length_of_study(study: optuna.Study, base: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The settings with the length of the study's runs, and the other number of steps that they named, if any."""
    stored = identity_of(study).get("base settings", {})
    length = {name: stored[name] for name in LENGTHS if name in stored}
    same = {**{name: value for name, value in base.items() if name not in LENGTHS}, **length}
    wanted = base.get("total_timesteps")
    return same, None if wanted == length.get("total_timesteps") else wanted


def load_study(
    order: TuneOrder, folder: Path, space: Space, *, say: Callable[[str], None], stopped: Callable[[], bool]
) -> optuna.Study:
    """The study that `make_study` made, in a worker. stopped: whether to wait no longer for a storage that is away."""
    return _study(order, folder, space, say=say, stopped=stopped, wait=True)


def _study(
    order: TuneOrder,
    folder: Path,
    space: Space,
    *,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
    wait: bool = False,
) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from ml_pipeline.tuning.trials.trial_run import report_interval  # with torch

    base = layered(order.base, order.objective.settings)
    seed = int(base.get("seed") or 0)
    sampler = SeededByTrial(lambda its_seed: make_sampler(order.tune.sampler, its_seed, space), seed)
    return optuna.create_study(
        study_name=order.study_name,
        storage=open_storage(order.tune.storage, folder, say, wait=wait, stopped=stopped),
        sampler=sampler,
        pruner=make_pruner(order.tune.pruner, budget=steps_per_trial(order), report_every=report_interval(base)),
        direction="maximize",
        load_if_exists=True,
    )
