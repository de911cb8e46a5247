"""The vector environment that a trainer steps, made of what its user hands over."""

from collections.abc import Sequence

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.distributed.ranks import Ranks
from ml_pipeline.models.rl.distributed.rows import rows_of


def vectorized(envs: Sequence[EnvFactory] | VectorEnv | gymnasium.Env, ranks: Ranks) -> VectorEnv:
    """`ParallelEnv` over functions, `SerialEnv` over a single environment; a vector environment is returned as it is.

    ranks: functions are those of all environments, of which this rank makes its own.
    Raises UserError for anything else, and for another autoreset mode than SAME_STEP.
    """
    if isinstance(envs, Sequence) and not isinstance(envs, str):
        own = envs[rows_of(ranks.rank, ranks.size, len(envs))]
        return ParallelEnv(own, copy=False)  # the collector copies what it stores
    if isinstance(envs, gymnasium.Env):
        return SerialEnv([lambda: envs])
    if not isinstance(envs, VectorEnv):
        raise UserError(
            'PPOTrainer needs functions that make one environment each, such as [lambda: gymnasium.make("CartPole-v1")]'
            f" * 8, or environments, but got {envs!r}."
        )
    require_same_step(envs, "PPOTrainer")
    return envs


def require_same_step(envs: VectorEnv, trainer: str) -> None:
    """Raise UserError, naming the trainer, where the environments have another autoreset mode."""
    if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise UserError(
            f"{trainer} needs environments with autoreset_mode=AutoresetMode.SAME_STEP, but these have "
            f"{envs.metadata.get('autoreset_mode')}; make them with SAME_STEP."
        )


def waited_s(envs: VectorEnv) -> float:
    """How long the trainer's process has waited for their workers, all in all."""
    return float(getattr(envs, "waited_s", 0.0))
