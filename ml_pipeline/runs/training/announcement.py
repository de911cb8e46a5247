"""What a run tells before it trains."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.config.env_schedule import planned_end
from ml_pipeline.models.rl.algorithms.trainer import Trainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.monitoring.listener import RunStart
from ml_pipeline.runs.training.env_scaling import EnvScaling


def run_start(folder: Path, trainer: Trainer, scaling: EnvScaling, *, n_ranks: int) -> RunStart:
    """The run as it begins. scaling: has its environments, and the settings of now."""
    parallel = scaling.envs if isinstance(scaling.envs, ParallelEnv) else None
    total_iterations, total_steps = _planned_length(trainer, scaling)
    run, n_steps = scaling.config.run, scaling.config.ppo.n_steps
    episodes = None if run.n_envs_schedule else run.num_episodes
    has_workers = parallel is not None and parallel.num_workers > 0
    return RunStart(
        folder=folder,
        n_envs=scaling.n_envs,
        n_workers=parallel.num_workers if parallel else 0,
        start_method=parallel.start_method if parallel else None,
        total_iterations=total_iterations,
        total_steps=total_steps,
        first_step=trainer.global_step,
        n_envs_schedule=run.n_envs_schedule,
        n_ranks=n_ranks,
        one_env_steps=None if episodes is None else episodes * n_steps,
        unused_start_method=None if has_workers else run.parallel_start_method,
    )


def opening_sentences(trainer: Trainer, resumed_from: Mapping[str, Any] | None) -> Iterator[str]:
    """Where the run goes on, and what of its environments it could not restore. resumed_from: a loaded checkpoint."""
    if resumed_from is not None:
        yield f"Going on after iteration {trainer.iteration}, step {trainer.global_step:,}."
        if trainer.finished:
            yield (
                "All steps are done, so nothing is trained; to train on, add --total-timesteps N, with N above "
                f"{trainer.global_step:,}."
            )
        state = resumed_from["trainer"]
        if state["environments"] is None:
            yield f"The environments begin new episodes: {state['environments_missing']}"
    yield from getattr(trainer, "notices", ())


def _planned_length(trainer: Trainer, scaling: EnvScaling) -> tuple[int, int]:
    """At which iteration and global step training ends, the planned numbers of environments considered."""
    run, n_steps = scaling.config.run, scaling.config.ppo.n_steps
    left = trainer.total_iterations - trainer.iteration
    if not run.n_envs_schedule or left <= 0:
        return trainer.total_iterations, trainer.total_timesteps
    start = trainer.total_timesteps - left * scaling.n_envs * n_steps  # of the next iteration
    more, end = planned_end(
        run.timesteps(n_steps),
        step=start,
        n_steps=n_steps,
        n_envs=run.n_envs_at(start),
        schedule=run.n_envs_schedule,
    )
    return trainer.iteration + more, end
