"""Running statistics against those of the whole stream at once."""

import numpy as np

from ml_pipeline.models.rl.preprocessing.normalization import (
    ObservationNormalizer,
    RewardScaler,
    RunningMoments,
    ValueNormalizer,
)


def test_moments_of_batches_are_those_of_the_whole_stream():
    rng = np.random.default_rng(0)
    stream = rng.normal(1e4, 3.0, size=(1000, 2))
    moments = RunningMoments(2)
    for batch in np.array_split(stream, [1, 8, 300, 301]):
        moments.update(batch)
    np.testing.assert_allclose(moments.mean, stream.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, stream.var(axis=0), rtol=1e-9)


def test_observations_come_out_standardized_clipped_and_in_float32():
    normalizer = ObservationNormalizer(1, clip=2.0)
    normalizer.update(np.array([[0.0], [2.0]], np.float32))  # mean 1, deviation 1
    out = normalizer(np.array([[1.0], [2.0], [100.0]], np.float32))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[:, 0], [0.0, 1.0, 2.0], atol=1e-6)


def test_normalizing_does_not_learn_nor_change_what_it_is_given():
    normalizer = ObservationNormalizer(1)
    normalizer.update(np.array([[0.0], [2.0]], np.float32))
    before, batch = normalizer.state_dict(), np.full((3, 1), 9.0, np.float32)
    normalizer(batch)
    assert normalizer.state_dict() == before
    assert (batch == 9.0).all()


def test_reward_scaling_divides_by_the_deviation_of_the_discounted_return_and_keeps_signs():
    scaler = RewardScaler(1, gamma=0.5, epsilon=1e-12)
    # Discounted returns: 2, then 2 / 2 + 3 = 4: mean 3, variance 1. The first alone has variance 0: clipped at 10.
    # The episode has ended: the return starts again at -6. Of 2, 4, -6 the variance is 56 / 3.
    scaled = scaler(np.array([[2.0], [3.0], [-6.0]]), np.array([[False], [True], [False]]))
    np.testing.assert_allclose(scaled, [[10.0], [3.0], [-6.0 / np.sqrt(56 / 3)]])


def test_a_restored_scaler_goes_on_with_the_same_bits():
    rng = np.random.default_rng(1)
    rewards, done = rng.normal(size=(20, 3)), rng.random((20, 3)) < 0.2
    scaler = RewardScaler(3, gamma=0.9)
    scaler(rewards[:10], done[:10])
    restored = RewardScaler(3, gamma=0.9)
    restored.load_state_dict(scaler.state_dict())
    steps = [restored(rewards[t : t + 1], done[t : t + 1]) for t in range(10, 20)]
    np.testing.assert_array_equal(scaler(rewards[10:], done[10:]), np.concatenate(steps))


def test_values_change_their_units_and_stay_what_they_were():
    normalizer = ValueNormalizer()
    # Of 2 and 6: mean 4, deviation 2. What was p in units of 1 around 0 is (p - 4) / 2.
    np.testing.assert_allclose(normalizer.update(np.array([2.0, 6.0], np.float32)), (0.5, -2.0), rtol=1e-7)
    assert (normalizer.mean, round(normalizer.deviation, 7)) == (4.0, 2.0)
    # Of 2, 6, 10 and 14: mean 8, variance (36 + 4 + 4 + 36) / 4 = 20.
    scale, shift = normalizer.update(np.array([10.0, 14.0], np.float32))
    np.testing.assert_allclose((scale, shift), (2 / np.sqrt(20), -4 / np.sqrt(20)), rtol=1e-7)
    p = 1.5  # was the value 1.5 * 2 + 4 = 7
    np.testing.assert_allclose((scale * p + shift) * normalizer.deviation + normalizer.mean, 7.0, rtol=1e-7)
    restored = ValueNormalizer()
    restored.load_state_dict(normalizer.state_dict())
    assert (restored.mean, restored.deviation) == (normalizer.mean, normalizer.deviation)
