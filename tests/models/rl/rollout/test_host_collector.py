"""What a rollout keeps of each step, against the environments' own account of it."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.host_collector import HostCollector

N_STEPS = 12
CONFIG = PPOConfig(n_steps=N_STEPS, minibatch_size=4, normalize_rewards=False)


class Diary(gymnasium.Env):
    """Observation t in step t of an episode of five, truncated; writes down the actions it is given."""

    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Box(-0.1, 0.1, (2,))

    def __init__(self):
        self.actions = []

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        self.actions.append(action)
        return np.full(1, self.t, np.float32), float(self.t), False, self.t == 5, {}


def collected(*, normalize_obs=False):
    envs = SerialEnv([Diary] * 2)
    policy = Policy(
        envs.single_observation_space, envs.single_action_space, PPOConfig(normalize_obs=normalize_obs), seed=0
    )
    collector = HostCollector(envs, policy, CONFIG, seed=0)
    assert collector.collect(should_stop=lambda: False)
    return envs, policy, collector


def test_unclipped_actions_are_kept_and_clipped_ones_are_taken():
    envs, _, collector = collected()
    for i, env in enumerate(envs.envs):
        kept = collector.buffer.actions[:, i]
        assert abs(kept).max() > 0.5
        np.testing.assert_array_equal(env.actions, np.clip(kept, -0.1, 0.1))


def test_observations_and_rewards_stand_where_they_belong():
    _, _, collector = collected()
    # The action of row t is chosen on observation t and earns reward t; the fifth step ends an episode on 5.
    assert collector.buffer.observations[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]
    assert collector.buffer.rewards[:, 1].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert np.flatnonzero(collector.buffer.truncated[:, 0]).tolist() == [4, 9]
    assert [(t, i, *final) for t, i, final in collector.buffer.final_observations] == [
        (4, 0, 5.0),
        (4, 1, 5.0),
        (9, 0, 5.0),
        (9, 1, 5.0),
    ]


def test_final_observations_are_normalized_as_all_others():
    _, policy, collector = collected(normalize_obs=True)
    *_, (_, _, final) = collector.buffer.final_observations
    # By the statistics of that moment: twice 11 observations, of which 0, 1, 2, 3, 4 twice each and the first again.
    seen = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0])
    assert final[0] == pytest.approx((5.0 - seen.mean()) / seen.std(), rel=1e-5)
    assert policy.observations.normalizer.moments.count == 2 * (N_STEPS + 1)
