"""`ParallelEnv` out of gymnasium.make_vec, and under Gymnasium's vector wrappers."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from ml_pipeline.integrations.gym_vector import make_parallel_env
from ml_pipeline.models.rl.core.vec_env import ParallelEnv


def make_vec(**kwargs):
    spec = gymnasium.spec("CartPole-v1")
    spec.vector_entry_point = partial(make_parallel_env, "CartPole-v1")
    return gymnasium.make_vec(spec, num_envs=3, vectorization_mode="vector_entry_point", **kwargs)


def test_make_vec_makes_it_with_options_for_both():
    envs = make_vec(num_workers=2, autoreset_mode=AutoresetMode.NEXT_STEP, max_episode_steps=7)
    try:
        assert isinstance(envs.unwrapped, ParallelEnv)
        assert (envs.num_envs, envs.num_workers, envs.spec.id) == (3, 2, "CartPole-v1")
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        envs.reset(seed=0)
        truncated = [envs.step(np.array([step % 2] * 3))[3].tolist() for step in range(7)]
        assert truncated == [[False] * 3] * 6 + [[True] * 3]
    finally:
        envs.close()


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.RecordEpisodeStatistics,
        wrappers.NormalizeObservation,
        wrappers.NormalizeReward,
        wrappers.FlattenObservation,
        wrappers.DictInfoToList,
        wrappers.ClipReward,
        partial(wrappers.DtypeObservation, dtype=np.float64),
        partial(wrappers.TransformReward, func=lambda reward: 2 * reward),
    ],
    ids=lambda wrap: getattr(wrap, "func", wrap).__name__,
)
def test_vector_wrappers_see_what_they_see_over_gymnasiums_own(wrap):
    if wrap is wrappers.ClipReward:
        wrap = partial(wrap, min_reward=0, max_reward=0.5)
    mode = AutoresetMode.NEXT_STEP
    own = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3, autoreset_mode=mode)
    seen = []
    for envs in (wrap(own), wrap(make_vec(num_workers=2, autoreset_mode=mode))):
        results = [envs.reset(seed=4)[0]]
        for step in range(60):
            observations, rewards, terminated, truncated, _ = envs.step(np.array([0, 1, step % 2]))
            results += [observations, rewards, terminated, truncated]
        envs.close()
        seen.append(results)
    for ours, theirs in zip(*seen, strict=True):
        np.testing.assert_array_equal(ours, theirs)
