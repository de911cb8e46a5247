"""Episode records worked by hand."""

import math

import numpy as np

from ml_pipeline.models.rl.rollout.collector import EpisodeTracker


def step(tracker, rewards, done, global_step=0):
    before = global_step - len(rewards)
    tracker.count(np.array([rewards]), np.array([done]), global_step=before, times=np.array([1.5]))


def test_an_episode_is_recorded_where_it_ends_and_the_next_begins_at_zero():
    tracker = EpisodeTracker(2)
    step(tracker, [1.0, 10.0], [False, False])
    step(tracker, [2.0, 20.0], [True, False], global_step=4)
    step(tracker, [5.0, 30.0], [True, True], global_step=6)
    assert [tuple(record[:-1]) for record in tracker.take_finished()] == [
        (3.0, 2, 0, 4, 1.5),
        (5.0, 1, 0, 6, 1.5),
        (60.0, 3, 1, 6, 1.5),
    ]
    assert tracker.take_finished() == []


def test_the_mean_is_over_the_last_hundred_and_nan_before_the_first():
    tracker = EpisodeTracker(1)
    assert math.isnan(tracker.recent_mean_return())
    for i in range(150):
        step(tracker, [float(i)], [True])
    assert tracker.recent_mean_return() == sum(range(50, 150)) / 100


def test_running_episodes_go_on_after_a_restore_unless_they_were_lost():
    tracker = EpisodeTracker(1)
    step(tracker, [1.0], [True])
    step(tracker, [7.0], [False])
    for running, expected in ((True, 8.0), (False, 1.0)):
        restored = EpisodeTracker(1)
        restored.load_state_dict(tracker.state_dict(), running=running)
        assert restored.recent_mean_return() == 1.0
        step(restored, [1.0], [True])
        assert restored.take_finished()[-1].episode_return == expected
