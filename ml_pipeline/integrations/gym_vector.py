"""`ParallelEnv` through `gymnasium.make_vec`: register an environment with this vector entry point.

gymnasium.register(
    "Mine-v0", entry_point="mine:MyEnv", vector_entry_point=functools.partial(make_parallel_env, "Mine-v0")
)
envs = gymnasium.make_vec("Mine-v0", num_envs=8, num_workers=2)
"""

import inspect
from functools import partial
from typing import Any

import gymnasium

from ml_pipeline.models.rl.core.vec_env import ParallelEnv

_OPTIONS = frozenset(inspect.signature(ParallelEnv).parameters) - {"env_fns"}


def make_parallel_env(env_id: str, num_envs: int = 1, **kwargs: Any) -> ParallelEnv:
    """num_envs environments of a registered id. Arguments of `ParallelEnv` go to it, others to `gymnasium.make`.

    >>> envs = make_parallel_env("CartPole-v1", 4, num_workers=2, max_episode_steps=9)
    >>> envs.num_envs, envs.num_workers, envs.get_attr("spec")[0].max_episode_steps
    (4, 2, 9)
    >>> envs.close()
    """
    options = {name: kwargs.pop(name) for name in _OPTIONS & kwargs.keys()}
    return ParallelEnv([partial(gymnasium.make, env_id, **kwargs)] * num_envs, **options)
