"""The trainer of the algorithm that settings name, and what is told from its state, whichever it is."""

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer import Trainer
from ml_pipeline.models.rl.algorithms.vector_envs import require_same_step
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.monitoring.sink import MetricsSink
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.train_config import TrainConfig

REPLAY = "replay"
"""A large part of a trainer's state that only going on needs: the transitions that it learns from again."""


def make_trainer(
    config: TrainConfig, envs: VectorEnv, *, device: str, sink: MetricsSink, ranks: RankContext
) -> Trainer:
    """A trainer over these environments. Raises UserError where they do not fit the algorithm.

    ranks: that train together, each over environments of its own.
    """
    run = config.run
    if run.algorithm == OWN:
        spaces = envs.single_observation_space, envs.single_action_space
        policy = Policy(*spaces, config.ppo, seed=run.seed, device=device)
        return PPOTrainer(
            envs,
            config.ppo,
            total_timesteps=config.timesteps,
            policy=policy,
            seed=run.seed,
            sink=sink,
            ranks=ranks.group,
        )
    if ranks.size > 1:
        raise UserError(f"{run.algorithm} trains in one process; leave out the other ranks, or train by {OWN}.")
    from ml_pipeline.runs.sb3.trainer import SB3Trainer

    if not isinstance(envs, ParallelEnv):
        raise UserError(
            f"{run.algorithm} trains in a ParallelEnv, but got a {type(envs).__name__}; make the environments by "
            "ParallelEnv(env_fns, num_workers=0), which steps them in this process."
        )
    require_same_step(envs, run.algorithm)
    return SB3Trainer(envs, run, config.ppo, device=device, sink=sink)


def trained_steps(trainer_state: Mapping[str, Any]) -> int:
    """For how many environment steps the trainer of a state had trained. Raises KeyError where it is none."""
    return int(trainer_state.get("collector", trainer_state)["global_step"])


def without_replay(trainer_state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without what only going on needs."""
    return {name: part for name, part in trainer_state.items() if name != REPLAY}
