"""What an update learns from, against the networks and GAE called by hand."""

import dataclasses
import math
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import in_threads, one_thread
from ml_pipeline.models.rl.rollout import estimates
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.estimates import (
    ShapeError,
    compute_gae,
    estimate,
    explained_variance,
    outputs_of,
    outputs_over_sequences,
    with_normalized_values,
)
from ml_pipeline.models.rl.transitions import Sequences, TrainingFailed

N_STEPS, NUM_ENVS = 5, 3


def filled_buffer():
    """A rollout with a termination and a truncation, and the observation that the latter ended on."""
    rng = np.random.default_rng(0)
    buffer = RolloutBuffer(N_STEPS, NUM_ENVS, 2)
    buffer.observations[N_STEPS] = rng.normal(size=(NUM_ENVS, 2))
    buffer.start(rng.random((N_STEPS, NUM_ENVS), dtype=np.float32))
    final = rng.normal(size=2).astype(np.float32)
    for t in range(N_STEPS):
        terminated = np.array([t == 1, False, False])
        truncated = np.array([False, t == 2, False])
        next_obs = rng.normal(size=(NUM_ENVS, 2)).astype(np.float32)
        buffer.store(rng.integers(2, size=NUM_ENVS), rng.normal(size=NUM_ENVS), terminated, truncated, next_obs)
        if t == 2:
            buffer.final_observations.append((2, 1, final))
    return buffer, final


def test_truncation_bootstraps_from_final_obs():
    policy = Policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), PPOConfig(hidden_sizes=(4,), normalize_obs=False))
    buffer, final = filled_buffer()
    batch, explained = estimate(buffer, policy, gamma=0.9, gae_lambda=0.8)

    def value(observation):
        with torch.no_grad():
            return policy.network.critic(torch.from_numpy(observation)).item()

    values = np.array([[value(o) for o in row] for row in buffer.observations], np.float32)
    next_values = values[1:].copy()
    next_values[2, 1] = value(final)
    done = buffer.terminated | buffer.truncated
    advantages, returns = compute_gae(
        buffer.rewards, values[:-1], next_values, buffer.terminated, done, gamma=0.9, gae_lambda=0.8
    )
    np.testing.assert_allclose(batch.inputs.advantages.view(N_STEPS, NUM_ENVS), advantages, atol=1e-6)
    np.testing.assert_allclose(batch.inputs.returns.view(N_STEPS, NUM_ENVS), returns, atol=1e-6)
    np.testing.assert_allclose(batch.inputs.old_values.view(N_STEPS, NUM_ENVS), values[:-1], atol=1e-6)
    assert math.isclose(explained, explained_variance(values[:-1], returns), abs_tol=1e-5)


@pytest.mark.parametrize("share_layers", [False, True])
def test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units(share_layers):
    plain, normalized = (
        Policy(
            spaces.Box(-1, 1, (2,)),
            spaces.Discrete(2),
            PPOConfig(
                hidden_sizes=(4,),
                normalize_obs=False,
                normalize_values=normalize_values,
                share_layers=share_layers,
            ),
        )
        for normalize_values in (False, True)
    )
    normalized.values.learn(np.array([20.0, 60.0], np.float32))  # its weights are now those of units of 20 around 40
    (buffer, _), rates = filled_buffer(), {"gamma": 0.9, "gae_lambda": 0.8}
    expected = estimate(buffer, plain, **rates)
    found = estimate(buffer, normalized, **rates)
    for theirs, ours in zip(expected.batch.inputs, found.batch.inputs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    learnt = with_normalized_values(found.batch, normalized).inputs
    assert torch.equal(learnt.advantages, found.batch.inputs.advantages)
    mean, deviation = normalized.values.normalizer.mean, normalized.values.normalizer.deviation
    np.testing.assert_allclose(learnt.returns * deviation + mean, expected.batch.inputs.returns, atol=1e-5)
    with torch.no_grad():  # the old values are what the network predicts in its new units
        _, values = normalized.network(found.batch.observations)
    np.testing.assert_allclose(values, learnt.old_values, atol=1e-5)


def test_explained_variance():
    returns = np.array([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 9.0), returns) == 0.0
    assert math.isnan(explained_variance(returns, np.ones(3)))


def test_everything_that_an_update_learns_from_is_float32():
    policy = Policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), PPOConfig(hidden_sizes=(4,)))
    buffer, _ = filled_buffer()
    batch = estimate(buffer, policy, gamma=0.9, gae_lambda=0.8).batch
    assert {tensor.dtype for tensor in (batch.observations, *batch.inputs)} == {torch.float32}


def column(*values, dtype=np.float32):
    return np.array(values, dtype=dtype)[:, None]


def gae(rewards, values, next_values, *ends):
    terminated, truncated = ends
    terminated, truncated = column(*terminated, dtype=bool), column(*truncated, dtype=bool)
    advantages, returns = compute_gae(
        column(*rewards),
        column(*values),
        column(*next_values),
        terminated,
        terminated | truncated,
        gamma=0.5,
        gae_lambda=0.5,
    )
    return advantages[:, 0].tolist(), returns[:, 0].tolist()


def test_an_open_rollout_bootstraps_from_the_value_after_it():
    # delta_1 = 2 + .5 * 8 - 4 = 2;  delta_0 = 1 + .5 * 4 - 2 = 1;  A_0 = 1 + .25 * 2 = 1.5
    advantages, returns = gae([1, 2], [2, 4], [4, 8], [0, 0], [0, 0])
    assert advantages == [1.5, 2.0]
    assert returns == [3.5, 6.0]


def test_termination_neither_bootstraps_nor_lets_the_trace_through():
    # delta_0 = 1 + 0 - 2 = -1, whatever follows;  delta_1 = 2 + .5 * 8 - 4 = 2
    advantages, _ = gae([1, 2], [2, 4], [100, 8], [1, 0], [0, 0])
    assert advantages == [-1.0, 2.0]


def test_truncation_bootstraps_from_final_obs_and_cuts_the_trace():
    # delta_0 = 1 + .5 * 6 - 2 = 2, with 6 = V(final_obs);  the next episode's 2 does not reach it
    advantages, _ = gae([1, 2], [2, 4], [6, 8], [0, 0], [1, 0])
    assert advantages == [2.0, 2.0]


def test_terminated_and_truncated_at_once_is_terminated():
    assert gae([1, 2], [2, 4], [6, 8], [1, 0], [1, 0]) == gae([1, 2], [2, 4], [6, 8], [1, 0], [0, 0])


def test_equals_the_sum_of_discounted_errors_in_every_environment():
    rng = np.random.default_rng(0)
    n_steps, num_envs, gamma, gae_lambda = 40, 5, 0.97, 0.9
    rewards, values, next_values = rng.normal(size=(3, n_steps, num_envs)).astype(np.float32)
    terminated, truncated = rng.random((2, n_steps, num_envs)) < 0.1
    done = terminated | truncated
    advantages, returns = compute_gae(
        rewards, values, next_values, terminated, done, gamma=gamma, gae_lambda=gae_lambda
    )
    for i in range(num_envs):
        for t in range(n_steps):
            expected, weight = 0.0, 1.0
            for k in range(t, n_steps):
                bootstrap = 0.0 if terminated[k, i] else gamma * float(next_values[k, i])
                expected += weight * (float(rewards[k, i]) + bootstrap - float(values[k, i]))
                weight *= gamma * gae_lambda
                if done[k, i]:
                    break
            assert advantages[t, i] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_array_equal(returns, advantages + values)


def test_shapes_that_differ_are_named():
    ones = np.ones((3, 2), np.float32)
    with pytest.raises(ShapeError, match=r"next_values must have the shape of rewards, \(3, 2\), but has \(2, 2\)"):
        compute_gae(ones, ones, ones[:2], ones > 0, ones > 0, gamma=0.9, gae_lambda=0.9)


IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
T, N = 14, 20  # 280 rows: a part of 256, and one of 24; environments: two parts of 8, and one of 4


def network_of(**settings):
    return Policy(IMAGE, spaces.Discrete(3), PPOConfig(hidden_sizes=(16,), **settings), seed=1).network


def case_of(network):
    generator = np.random.default_rng(0)
    observations = torch.from_numpy(generator.integers(0, 256, (T, N, 36 * 36)).astype(np.float32))
    starts = torch.from_numpy(generator.random((T, N)) < 0.2)
    return observations, Sequences(starts, torch.randn(N, network.state_size, generator=torch.manual_seed(0)))


def evaluate(network, observations, sequences):
    if network.state_size:
        return outputs_over_sequences(network, observations, sequences)
    return outputs_of(network, observations.flatten(0, 1))


@pytest.mark.parametrize("settings", [{}, {"memory": "gru"}, {"memory": "lstm", "share_layers": True}])
def test_parts_give_what_one_call_gives_for_any_number_of_threads(settings, monkeypatch):
    network = network_of(**settings)
    observations, sequences = case_of(network)
    rows = observations.flatten(0, 1)
    expected = network.over_sequences(rows, sequences) if settings else network(rows)
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            monkeypatch.setattr(estimates, "in_threads", partial(in_threads, n_threads=n_threads))
            with one_thread():
                found.append(evaluate(network, observations, sequences))
    finally:
        torch.set_num_threads(before)
    for columns in zip(expected, *found, strict=True):
        whole, *parts = columns
        torch.testing.assert_close(parts[0], whole.detach(), rtol=1e-4, atol=1e-5)
        assert not parts[0].requires_grad
        assert torch.equal(parts[0], parts[1])
        assert torch.equal(parts[0], parts[2])


CONFIG = PPOConfig(n_steps=8, minibatch_size=16, hidden_sizes=(8,))


class Breaking(gymnasium.Env):
    """From its `after`-th step on, the second number of the observation is NaN or the reward infinite."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, after, reward=1.0):
        self.after, self.reward, self.t = after, reward, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        broken = self.t >= self.after
        observation = self.np_random.normal(size=2).astype(np.float32)
        if broken and self.reward == 1.0:
            observation[1] = np.nan
        return observation, self.reward if broken else 1.0, self.t % 5 == 0, False, {}


def trainer_for(*env_fns, config=CONFIG):
    return PPOTrainer(SerialEnv(env_fns), config, total_timesteps=3 * len(env_fns) * config.n_steps)


def state_of(trainer):
    policy = trainer.policy.state_dict()
    return [policy["normalizer"], *map(torch.Tensor.tolist, policy["network"].values())]


@pytest.mark.parametrize(
    ("normalize_obs", "env_fn", "sentence"),
    [
        (
            False,
            lambda: Breaking(after=8 + 3),
            "The observation of environment 1 after step 3 of the rollout, at index 1, is nan",
        ),
        (
            True,
            lambda: Breaking(after=8 + 3),
            r"The observation of environment 1 after step 3 of the rollout, at index 1, is nan; .*"
            r"The policy was reset to iteration 1\.",
        ),
        (
            True,
            lambda: Breaking(after=8 + 3, reward=1e300),  # too large for a float32
            "The reward of environment 1 after step 3 of the rollout is inf",
        ),
    ],
    ids=["observation", "normalized observation", "reward"],
)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_the_first_number_that_is_none_is_named_and_the_policy_as_before(normalize_obs, env_fn, sentence):
    config = dataclasses.replace(CONFIG, normalize_obs=normalize_obs, normalize_rewards=False)
    trainer = trainer_for(lambda: Breaking(after=99), env_fn, config=config)
    trainer.train_episode_vectorized()
    before = state_of(trainer)
    with pytest.raises(TrainingFailed, match=sentence):
        trainer.train_episode_vectorized()
    assert state_of(trainer) == before


def test_an_update_that_blows_up_is_named_and_undone():
    config = dataclasses.replace(CONFIG, learning_rate=1e30, max_grad_norm=1e30, n_epochs=4)
    trainer = trainer_for(lambda: Breaking(after=99), lambda: Breaking(after=99), config=config)
    before = trainer.policy.state_dict()["network"]
    with pytest.raises(TrainingFailed, match=r"No longer finite .*; continue with a smaller --learning-rate"):
        trainer.train_episode_vectorized()
    after = trainer.policy.state_dict()["network"]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("head", "what"), [("actor", "log-probability"), ("critic", "value")])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_policy_that_gives_nan_is_named(head, what):
    trainer = trainer_for(lambda: Breaking(after=99), lambda: Breaking(after=99))
    with torch.no_grad():
        getattr(trainer.policy.network, head)[-1].bias.fill_(torch.nan)
    trainer.policy.refresh()
    with pytest.raises(
        TrainingFailed, match=f"The policy's {what} in step 1 of the rollout, for environment 0, is nan"
    ):
        trainer.train_episode_vectorized()
