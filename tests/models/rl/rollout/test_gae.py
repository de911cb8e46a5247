"""Advantages worked by hand, and against the definition summed term by term."""

import numpy as np
import pytest

from ml_pipeline.models.rl.rollout.estimates import ShapeError, compute_gae


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
