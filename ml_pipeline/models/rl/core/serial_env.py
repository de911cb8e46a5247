"""`SerialEnv`: steps environments one after another in this process; `ParallelEnv` must give the same bits."""

from collections.abc import Sequence

import gymnasium
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.arguments import ObservationMode, check_observation_mode
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.vec_base import BlockVectorEnv
from ml_pipeline.models.rl.core.workers.open import open_here


class SerialEnv(BlockVectorEnv):
    """A `gymnasium.vector.VectorEnv` without processes: the executable specification of `ParallelEnv`.

    env_fns: functions that make one environment each. autoreset_mode: one of the three modes of Gymnasium. copy: if
    False, step() and reset() return views of observations that are valid until the next call, not copies.
    observation_mode: as in `ParallelEnv`.

    >>> import gymnasium
    >>> envs = SerialEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    >>> observations, infos = envs.reset(seed=7)
    >>> observations.shape, infos
    ((2, 4), {})
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        copy: bool = True,
        observation_mode: ObservationMode = "same",
    ) -> None:
        if not env_fns:
            raise UserError("env_fns must hold at least one factory, but is empty.")
        check_observation_mode(observation_mode)
        pool = open_here(env_fns, AutoresetMode(autoreset_mode))
        (self._worker,) = pool.here
        super().__init__(pool, self.envs[0], copy=copy, observation_mode=observation_mode)

    @property
    def envs(self) -> list[gymnasium.Env]:
        """The environments themselves."""
        return self._worker.envs
