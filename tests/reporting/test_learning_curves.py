"""Curves as metrics.jsonl tells them, whole or torn, and means of several with their interval."""

import json
import math

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.reporting.learning_curves import mean_and_interval, mean_curve, read_learning_curve

PARTS = ("acting", "stepping", "waiting", "learning")


def write_metrics(folder, rows):
    """Rows of (steps, mean return, episodes, score), each after a second of every part of training."""
    folder.mkdir(exist_ok=True)
    lines = []
    for steps, episode_return, n_episodes, score in rows:
        line = {"time/global_step": steps, **{f"time/{part}_s": 1.0 for part in PARTS}}
        line |= {"rollout/episode_return": episode_return, "rollout/n_completed_episodes": n_episodes}
        if score is not None:
            line |= {"eval/score": score, "time/evaluating_s": 6.0}
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


ROWS = [(100, 1.0, 4, None), (200, None, 0, 5.0), (300, 3.0, 1, 7.0), (400, 6.0, 3, 2.0)]


def test_a_curve_is_what_the_file_tells(tmp_path):
    curve = read_learning_curve(write_metrics(tmp_path, ROWS))
    np.testing.assert_array_equal(curve.steps, [100, 200, 300, 400])
    np.testing.assert_array_equal(curve.training_s, [4, 8, 12, 16])
    np.testing.assert_array_equal(curve.seconds, [4, 14, 24, 34])
    np.testing.assert_array_equal(curve.returns, [1, math.nan, 3, 6])
    np.testing.assert_array_equal(curve.scores, [math.nan, 5, 7, 2])
    assert (curve.best_score, curve.last_score, curve.steps_per_second) == (7.0, 2.0, 25.0)
    np.testing.assert_array_equal(curve.at("steps"), curve.steps)
    np.testing.assert_array_equal(curve.at("time"), curve.seconds)


def test_smoothing_takes_the_iterations_that_have_a_return(tmp_path):
    curve = read_learning_curve(write_metrics(tmp_path, [(50, None, 0, None), *ROWS]))
    np.testing.assert_array_equal(curve.smoothed(1), curve.returns)
    # Of two each: none; 1; 1; 3; (3 + 6) / 2. Of ten: everything so far, at the end (1 + 3 + 6) / 3.
    np.testing.assert_allclose(curve.smoothed(2), [math.nan, 1, 1, 3, 4.5])
    np.testing.assert_allclose(curve.smoothed(10), [math.nan, 1, 1, 2, 10 / 3])


def test_the_last_return_counts_the_episodes_of_the_last_twentieth(tmp_path):
    rows = [(100 * i, 0.0, 1, None) for i in range(1, 39)] + [(3900, 1.0, 3, None), (4000, 5.0, 1, None)]
    curve = read_learning_curve(write_metrics(tmp_path, rows))
    # Above 3,800 of 4,000 steps: three episodes of 1 and one of 5.
    assert curve.last_return() == 2.0


def test_torn_and_strange_lines_are_left_out(tmp_path):
    write_metrics(tmp_path, ROWS)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    strange = '{"time/global_step": null}\n[1, 2]\nnull\n{"half": \n\x00\x00\n{}\n'
    path.write_text(strange + whole + whole.splitlines()[0][:40])
    np.testing.assert_array_equal(read_learning_curve(tmp_path).steps, [100, 200, 300, 400])


def test_a_run_that_has_just_begun_has_an_empty_curve(tmp_path):
    curve = read_learning_curve(write_metrics(tmp_path, []))
    assert len(curve.steps) == 0
    assert all(math.isnan(x) for x in (curve.best_score, curve.last_score, curve.last_return(), curve.steps_per_second))
    assert len(curve.smoothed(3)) == 0


def test_a_folder_without_metrics_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"is not a run folder: .*metrics.jsonl is missing; name run folders"):
        read_learning_curve(tmp_path)
    with pytest.raises(UserError, match="none does not exist"):
        read_learning_curve(tmp_path / "none")


def test_the_interval_of_two_runs_is_that_of_student():
    # Means 2 and 5; deviations sqrt(2) and 0; 12.706 * sqrt(2) / sqrt(2).
    mean, half_width = mean_and_interval(np.array([[1.0, 5.0], [3.0, 5.0]]))
    np.testing.assert_allclose(mean, [2, 5])
    np.testing.assert_allclose(half_width, [12.706, 0])


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (17, 2.120), (31, 2.042), (101, 1.984)])
def test_intervals_are_those_of_students_t(n, t):
    """Values of t for n - 1 degrees of freedom, from a table."""
    values = np.arange(n, dtype=float)
    half_width = t * np.std(values, ddof=1) / math.sqrt(n)
    assert mean_and_interval(values)[1] == pytest.approx(half_width, rel=5e-3)


def test_speed_is_that_of_the_part_which_the_curve_shows(tmp_path):
    """A run that continued another in a folder of its own: 1,000,000 steps were not its own."""
    curve = read_learning_curve(write_metrics(tmp_path, [(1_000_000 + 500 * t, 1.0, 1, None) for t in range(3)]))
    assert curve.steps_per_second == 125.0  # 1,000 steps in 2 x 4 s


def test_means_are_taken_where_all_runs_are_told():
    one = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    other = (np.array([5.0, 12.0, 15.0]), np.array([5.0, math.nan, 35.0]))  # three times as steep, from 5 to 15
    together = mean_curve([one, other], n_points=3)
    np.testing.assert_allclose(together.x, [5, 10, 15])
    np.testing.assert_allclose(together.mean, [5, 15, 25])


def test_runs_without_a_place_in_common_have_no_mean():
    early, late = (np.array([0.0, 1.0]), np.ones(2)), (np.array([2.0, 3.0]), np.ones(2))
    assert len(mean_curve([early, late]).x) == 0
    assert len(mean_curve([early, (np.array([1.0]), np.array([math.nan]))]).x) == 0
    assert mean_curve([(np.array([4.0]), np.array([1.0])), (np.array([4.0]), np.array([3.0]))]).mean.tolist() == [2.0]
