"""Schedules worked by hand."""

import pytest

from ml_pipeline.models.rl.update.schedules import adapted, scheduled


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


def test_the_learning_rate_is_lowered_by_a_third_and_raised_by_half_and_bounded():
    assert adapted(3.0, approx_kl=0.021, target_kl=0.01) == 2.0
    assert adapted(2.0, approx_kl=0.004, target_kl=0.01) == 3.0
    assert adapted(2.0, approx_kl=0.02, target_kl=0.01) == 2.0
    assert adapted(0.0101, approx_kl=1.0, target_kl=0.01) == 0.01
