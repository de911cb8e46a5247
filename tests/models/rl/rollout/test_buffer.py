"""What is stored, what a partial rollout's state holds, and that nothing handed in is kept."""

import numpy as np

from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer

N_STEPS, NUM_ENVS, SIZE = 4, 2, 3


def filled(n_filled):
    buffer = RolloutBuffer(N_STEPS, NUM_ENVS, SIZE)
    buffer.observations[buffer.position] = -1.0
    buffer.start(np.full((N_STEPS, NUM_ENVS), 0.5, np.float32))
    for t in range(n_filled):
        flags = np.array([t == 1, False])
        next_obs = np.full((NUM_ENVS, SIZE), float(t), np.float32)
        buffer.store(np.array([t, t + 1]), np.array([1.0, 2.0]) * t, flags, flags[::-1], next_obs)
        next_obs[:] = 99.0  # an environment that reuses its array must not reach into the rollout
    return buffer


def test_a_step_goes_to_its_row_and_the_observation_after_it_to_the_next():
    buffer = filled(N_STEPS)
    assert buffer.full
    assert buffer.observations[:, 0, 0].tolist() == [-1, 0, 1, 2, 3]
    assert buffer.actions.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert buffer.rewards[3].tolist() == [3.0, 6.0]
    assert buffer.terminated[:, 0].tolist() == [False, True, False, False]
    assert buffer.truncated[:, 1].tolist() == [False, True, False, False]


def test_the_next_rollout_begins_where_the_last_one_ended():
    buffer = filled(N_STEPS)
    buffer.start(buffer.noise)
    assert buffer.position == 0
    assert buffer.observations[0, 0, 0] == 3.0
    assert buffer.final_observations == []


def test_a_partial_rollout_survives_saving():
    buffer = filled(3)
    buffer.final_observations.append((1, 1, np.ones(SIZE, np.float32)))
    restored = RolloutBuffer(N_STEPS, NUM_ENVS, SIZE)
    restored.load_state_dict(buffer.state_dict())
    assert restored.position == 3
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "noise"):
        np.testing.assert_array_equal(getattr(restored, name)[:3], getattr(buffer, name)[:3], err_msg=name)
    np.testing.assert_array_equal(restored.observations[3], buffer.observations[3])
    assert restored.final_observations[0][:2] == (1, 1)


def test_between_rollouts_only_the_next_observations_are_saved():
    buffer = filled(N_STEPS)
    state = buffer.state_dict()
    assert sum(x.numel() for x in state.values() if hasattr(x, "numel")) == NUM_ENVS * SIZE
    restored = RolloutBuffer(N_STEPS, NUM_ENVS, SIZE)
    restored.load_state_dict(state)
    assert restored.full
    restored.start(buffer.noise)
    np.testing.assert_array_equal(restored.observations[0], buffer.observations[N_STEPS])
