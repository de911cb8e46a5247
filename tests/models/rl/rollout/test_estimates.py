"""What an update learns from, against the networks and GAE called by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.estimates import compute_gae, estimate, explained_variance, with_normalized_values

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
