import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.curves.chart_data import STAGES, check_axis, curve, new_rows, time_spent, x_of
from ml_pipeline.dashboard.curves.metrics_columns import MetricsColumns
from tests.dashboard.run_folders import append, lines_of, row


@pytest.fixture
def columns(tmp_path):
    def read(rows):
        path = tmp_path / "metrics.jsonl"
        path.write_text(lines_of(rows))
        found = MetricsColumns(path, durations=STAGES)
        found.refresh()
        return found

    return read


def test_a_curve_leaves_out_rows_without_a_value(columns):
    found = columns([row(1), row(2, **{"eval/score": 7.0}), row(3, **{"eval/score": None})])
    assert curve(found, "eval/score", x=x_of(found, "step")) == {"x": [200.0], "y": [7.0], "n_points": 1}


def test_time_is_that_of_training_and_evaluation(columns):
    found = columns([row(1), row(2, **{"time/evaluating_s": 3.0}), row(3)])
    assert x_of(found, "time").tolist() == [2.0, 7.0, 9.0]
    assert curve(found, "rollout/mean_return_100", x=x_of(found, "time"))["x"] == [2.0, 7.0, 9.0]


def test_steps_that_go_back_are_put_in_order(columns):
    found = columns([row(3), row(1), row(2)])
    assert curve(found, "rollout/mean_return_100", x=x_of(found, "step"))["y"] == [1.0, 2.0, 3.0]


def test_a_part_of_a_smoothed_curve_is_that_of_the_whole(columns):
    found = columns([row(i, **{"train/policy_loss": float(i % 7)}) for i in range(1, 400)])
    x = x_of(found, "step")
    whole = curve(found, "train/policy_loss", x=x, smoothing=0.9)["smooth"]
    part = curve(found, "train/policy_loss", x=x, smoothing=0.9, low=10_000.0, high=12_000.0)["smooth"]
    assert part["x"][0] == 9_900.0
    assert part["y"] == [y for at, y in zip(whole["x"], whole["y"], strict=True) if 9_900.0 <= at <= 12_100.0]
    assert (part["sum"], part["weight"]) == (whole["sum"], whole["weight"])


def test_where_the_time_went_adds_up(columns):
    found = columns([row(i) for i in range(1, 1001)])
    spent = time_spent(found, x=x_of(found, "step"), n_bins=10)
    assert spent["total"]["time/stepping_s"] == 1000.0
    assert len(spent["x"]) == 10
    assert sum(spent["stages"]["time/acting_s"]) == 500.0


def test_new_rows_hold_the_asked_metrics_alone(columns, tmp_path):
    found = columns([row(1)])
    append(tmp_path, [row(2, **{"train/policy_loss": None})])
    found.refresh()
    new = new_rows(found, ["train/policy_loss", "nothing"], since=1)
    assert new == {
        "from": 1, "to": 2, "step": [200.0], "time": [4.0], "metrics": {"train/policy_loss": [None], "nothing": [None]},
    }  # fmt: skip


def test_too_many_new_rows_are_not_sent_one_by_one(columns):
    found = columns([row(i) for i in range(1, 1200)])
    assert new_rows(found, ["train/policy_loss"], since=10) is None
    assert new_rows(found, ["train/policy_loss"], since=1100)["to"] == 1199


def test_without_rows_there_is_nothing_to_draw(columns):
    found = columns([])
    assert curve(found, "x", x=x_of(found, "step")) == {"x": [], "y": [], "n_points": 0}
    assert time_spent(found, x=x_of(found, "time"))["x"] == []


def test_infinity_is_not_drawn(columns):
    found = columns([row(1, a=1.0), row(2, a=2.0)])
    found.column("a")[1] = np.inf
    assert curve(found, "a", x=x_of(found, "step"))["y"] == [1.0]


def test_an_axis_has_one_of_two_names():
    assert check_axis("time") == "time"
    with pytest.raises(UserError, match=r"axis must be one of step, time, but got \"epoch\""):
        check_axis("epoch")
