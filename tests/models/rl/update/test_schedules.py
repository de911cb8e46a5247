"""Schedules worked by hand."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.update.ppo_update import adapted, of_function, scheduled


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("constant", 0.75, 0.4),
        ("linear", 0.0, 0.4),
        ("linear", 0.75, 0.1),
        ("linear", 1.5, 0.0),  # trained past the planned end
        ("cosine", 0.0, 0.4),
        ("cosine", 0.5, 0.2),
        ("cosine", 0.75, 0.4 * 0.5 * (1 - 0.5**0.5)),  # cos(pi / 4)
        ("cosine", 1.0, 0.0),
        ("cosine", 1.5, 0.0),
    ],
)
def test_schedules(schedule, progress, expected):
    assert scheduled(0.4, schedule, progress) == pytest.approx(expected)


def test_a_function_gets_the_share_of_training_that_is_left():
    seen = [of_function("clip_range", lambda left: left, progress) for progress in (0.0, 0.25, 1.0, 1.5)]
    assert seen == [1.0, 0.75, 0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "sentence"), [(-1, "at least 0 and finite, but got -1"), (np.nan, "got nan"), (None, "but got None")]
)
def test_a_function_that_gives_no_number_is_told_with_the_place(value, sentence):
    with pytest.raises(UserError, match=rf"learning_rate\(0\.75\) must be .*{sentence}"):
        of_function("learning_rate", lambda left: value, 0.25)


def test_the_learning_rate_is_lowered_by_a_third_and_raised_by_half_and_bounded():
    assert adapted(3.0, approx_kl=0.021, target_kl=0.01) == 2.0
    assert adapted(2.0, approx_kl=0.004, target_kl=0.01) == 3.0
    assert adapted(2.0, approx_kl=0.02, target_kl=0.01) == 2.0
    assert adapted(0.0101, approx_kl=1.0, target_kl=0.01) == 0.01
