"""Compiled statistics against NumPy's, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.models.rl.preprocessing.normalization import ObservationNormalizer, RewardScaler

pytest.importorskip("numba")

SCALES = st.sampled_from([1e-3, 1.0, 1e4])
SEEDS = st.integers(0, 2**32 - 1)


def in_two_ways(make):
    plain, compiled = make(), make()
    compiled.compile()
    return plain, compiled


@given(seed=SEEDS, n=st.integers(1, 140), size=st.integers(1, 9), normalizes_some=st.booleans(), scale=SCALES)
def test_observations_and_their_statistics(seed, n, size, normalizes_some, scale):
    generator = np.random.default_rng(seed)
    columns = np.sort(generator.permutation(size)[: (size + 1) // 2]) if normalizes_some and size > 1 else None
    plain, compiled = in_two_ways(lambda: ObservationNormalizer(size, columns=columns, clip=2.0))
    for _ in range(3):
        observations = (generator.normal(size=(n, size)) * scale + generator.normal()).astype(np.float32)
        plain.update(observations)
        np.testing.assert_array_equal(compiled.learn_and_normalize(observations), plain(observations))
        np.testing.assert_array_equal(compiled(observations), plain(observations))
    assert compiled.state_dict() == plain.state_dict()


@given(seed=SEEDS, n_steps=st.integers(1, 30), num_envs=st.integers(1, 140), scale=SCALES)
def test_scaled_rewards_and_their_statistics(seed, n_steps, num_envs, scale):
    generator = np.random.default_rng(seed)
    plain, compiled = in_two_ways(lambda: RewardScaler(num_envs, gamma=0.9, clip=2.0))
    for _ in range(2):
        rewards = generator.normal(size=(n_steps, num_envs)) * scale
        done = generator.random((n_steps, num_envs)) < 0.2
        np.testing.assert_array_equal(compiled(rewards, done), plain(rewards, done))
    assert compiled.state_dict() == plain.state_dict()


def test_a_nan_comes_out_as_a_nan():
    plain, compiled = in_two_ways(lambda: ObservationNormalizer(2))
    observations = np.array([[0.0, np.nan], [2.0, 1.0]], np.float32)
    plain.update(observations)
    np.testing.assert_array_equal(compiled.learn_and_normalize(observations), plain(observations))
    np.testing.assert_array_equal(np.isnan(compiled.moments.mean), [False, True])


def test_what_is_not_laid_out_row_by_row_is_left_to_numpy():
    plain, compiled = in_two_ways(lambda: ObservationNormalizer(3))
    observations = np.asfortranarray(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    plain.update(observations)
    np.testing.assert_array_equal(compiled.learn_and_normalize(observations), plain(observations))


def test_normalizing_gives_new_memory_and_leaves_what_it_is_given():
    _, compiled = in_two_ways(lambda: ObservationNormalizer(3, columns=np.array([1])))
    observations = np.ones((2, 3), np.float32)
    normalized = compiled.learn_and_normalize(observations)
    assert not np.shares_memory(normalized, observations)
    assert (observations == 1).all()
    np.testing.assert_array_equal(normalized, [[1, 0, 1]] * 2)
