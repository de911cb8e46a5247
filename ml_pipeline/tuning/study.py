"""Creates or loads the Optuna study of an order, with its storage, sampler, pruner and identity."""

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
"""Settings of a run's length."""


def space_of(order: TuneOrder) -> Space:
    """The search space of the order, by default the built-in one for its task. Raises UserError as `read_space`."""
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
    """Create the study, or load it if it exists and was started with the same definition.

    version: of this program.
    Raises UserError if the storage, sampler or pruner cannot be used, or the existing study has another definition.
    """
    from ml_pipeline.runs.tasks import make_task  # loads all that tasks need, which workers do not need here
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
    """The settings with the study's own run length, and the number of steps in `base` if it differs."""
    stored = identity_of(study).get("base settings", {})
    length = {name: stored[name] for name in LENGTHS if name in stored}
    same = {**{name: value for name, value in base.items() if name not in LENGTHS}, **length}
    wanted = base.get("total_timesteps")
    return same, None if wanted == length.get("total_timesteps") else wanted


def load_study(
    order: TuneOrder, folder: Path, space: Space, *, say: Callable[[str], None], stopped: Callable[[], bool]
) -> optuna.Study:
    """Load, in a worker, the study that `make_study` created. stopped: whether to give up on an unavailable storage."""
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
    from ml_pipeline.tuning.trials.trial_run import report_interval  # loads torch

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
