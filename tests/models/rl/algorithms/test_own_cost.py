"""What acting and learning take is measured by training, and scaled to the settings."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms import own_cost
from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.models.rl.algorithms.own_cost import FrozenEnv, measure_own_cost, transition_bytes
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation
from tests.contracts.envs import MaskedEnv


@pytest.fixture
def updates(monkeypatch):
    """Trainings that take 1 ms a step, half of that for half of 8 environments, and 10 ms for each 256 transitions."""
    measured = []

    def modelled(env_fn, config, num_envs, device):
        measured.append((num_envs, config.n_steps, config.n_epochs))
        learning_s = 0.01 * num_envs * config.n_steps / 256 * config.n_epochs
        return TimeSpent(acting_s=config.n_steps * num_envs / 8e3, stepping_s=0.0, waiting_s=0.0, learning_s=learning_s)

    monkeypatch.setattr(own_cost, "_measure", modelled)
    return measured


def test_the_whole_iteration_is_measured_where_there_is_time(updates):
    cost = measure_own_cost(CountingEnv, PPOConfig(n_steps=512), num_envs=8)
    assert updates == [(4, 32, 1), (8, 32, 1), (8, 128, 1), (8, 512, 1), (8, 512, 4), (8, 512, 10)]
    # 8 * 512 / 256 = 16 minibatches of 10 ms in each of 10 epochs.
    assert (cost.learning_s, cost.acting_s, cost.acting_half_s) == pytest.approx((1.6, 1e-3, 5e-4))


def test_without_time_one_minibatch_stands_for_all(updates):
    cost = measure_own_cost(CountingEnv, PPOConfig(n_steps=512), num_envs=8, budget_s=0.0)
    assert updates == [(4, 32, 1), (8, 32, 1)]
    assert (cost.learning_s, cost.acting_s, cost.acting_half_s) == pytest.approx((1.6, 1e-3, 5e-4))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_it_is_measured_with_any_number_of_environments(num_envs):
    cost = measure_own_cost(
        lambda: gymnasium.make("CartPole-v1"), PPOConfig(n_steps=8, minibatch_size=8), num_envs=num_envs, budget_s=0.0
    )
    assert min(cost.acting_s, cost.acting_half_s, cost.learning_s) > 0
    assert cost.transition_bytes == 34


def test_masks_stay_those_of_the_environment():
    measure_own_cost(
        lambda: ActionMaskInObservation(MaskedEnv()), PPOConfig(n_steps=4, minibatch_size=4), num_envs=2, budget_s=0.0
    )


def test_a_policy_with_memory_is_measured():
    config = PPOConfig(n_steps=4, minibatch_size=8, memory="gru", memory_size=4)
    assert measure_own_cost(CountingEnv, config, num_envs=2, budget_s=0.0).learning_s > 0


def test_the_gradients_of_a_large_network_are_shared(updates, monkeypatch):
    monkeypatch.setattr(own_cost, "usable_cores", lambda: 2.0)
    config = PPOConfig(n_steps=40, minibatch_size=64, hidden_sizes=(512, 512), gradient_chunks=4, share_layers=True)
    sharing = measure_own_cost(CountingEnv, config, num_envs=2, budget_s=0.0).sharing
    # 80 transitions in 64 and 16, in 10 epochs; more than 512 * 512 weights of 4 bytes.
    assert (sharing.n_chunks, sharing.cores, sharing.n_minibatches) == (4, 2, 20)
    assert sharing.gradient_bytes > 10**6
    assert measure_own_cost(CountingEnv, PPOConfig(gradient_chunks=1, share_layers=True), num_envs=1).sharing is None


def test_settings_that_cannot_be_trained_with_are_refused():
    with pytest.raises(UserError, match="minibatch_size must be at most"):
        measure_own_cost(CountingEnv, PPOConfig(n_steps=8, minibatch_size=64), num_envs=2)


def test_the_environment_is_closed():
    closed = []

    class Closing(CountingEnv):
        def close(self):
            closed.append(True)

    measure_own_cost(Closing, PPOConfig(n_steps=4, minibatch_size=4), num_envs=1, budget_s=0.0)
    assert closed == [True]


def test_a_frozen_environment_stands_still():
    env = FrozenEnv((spaces.Box(0, 1, (2,)), spaces.Discrete(3)), np.ones(2, np.float32), {"a": 1})
    assert env.reset() == (env._observation, {"a": 1})
    assert env.step(2) == (env._observation, 0.0, False, False, {"a": 1})


@pytest.mark.parametrize(
    ("observation_space", "action_space", "n_bytes"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(-1, 1, (2,)), 4 * 192 + 16 + 10),
        (spaces.Box(0, 255, (40, 40, 3), np.uint8), spaces.Discrete(2), 4_800 + 8 + 10),  # an image
        (spaces.Discrete(5), spaces.MultiDiscrete([2, 3, 4]), 4 * 5 + 24 + 10),
        (spaces.Dict(a=spaces.Box(0, 1, (3,)), b=spaces.Discrete(2)), spaces.MultiBinary(4), 4 * 5 + 32 + 10),
    ],
)
def test_bytes_of_a_transition(observation_space, action_space, n_bytes):
    assert transition_bytes(observation_space, action_space) == n_bytes
