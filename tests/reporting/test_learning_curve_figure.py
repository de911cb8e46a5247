"""What is drawn where: lines and bands, axes and their units."""

import numpy as np
import pytest

from ml_pipeline.reporting.learning_curve_figure import CurveGroup, CurvePanel, learning_curve_figure
from ml_pipeline.reporting.learning_curves import LearningCurve


def _curve(returns, scores=None, seconds=1.0):
    n = len(returns)
    steps, time = 1000.0 * np.arange(1, n + 1), seconds * np.arange(1, n + 1)
    nothing = np.full(n, np.nan)
    scores = nothing if scores is None else np.array(scores, dtype=float)
    return LearningCurve(steps, time, time, np.array(returns, dtype=float), np.ones(n), scores)


def _lines(axes):
    return [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines]


def test_a_single_run_is_its_smoothed_line_over_its_iterations():
    figure = learning_curve_figure([CurvePanel("Task", [CurveGroup("a", [_curve([0, 2, 4])])])], smooth=2)
    (axes,) = figure.axes
    steps = [1000, 2000, 3000]
    assert _lines(axes) == [(steps, [0, 2, 4]), (steps, [0, 1, 3])]
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "return of training episodes\n(mean over 2 iterations)"
    assert axes.get_title("left") == "Task"
    assert axes.get_legend() is None


def test_scores_stand_below_where_there_are_any():
    curve = _curve([0, 2, 4], scores=[np.nan, 7, 9])
    figure = learning_curve_figure([CurvePanel("Task", [CurveGroup("a", [curve])])], smooth=1)
    above, below = figure.axes
    assert _lines(above) == [([1000, 2000, 3000], [0, 2, 4])]
    assert _lines(below) == [([2000, 3000], [7, 9])]
    assert (above.get_xlabel(), below.get_xlabel()) == ("", "environment steps")
    assert below.get_ylabel() == "score of evaluations"
    panel = CurvePanel("Task", [CurveGroup("a", [curve])], "Sharpe ratio")
    assert learning_curve_figure([panel]).axes[1].get_ylabel() == "score of evaluations\n(Sharpe ratio)"


def test_a_group_is_its_mean_with_an_interval_and_a_thin_line_a_run():
    groups = [
        CurveGroup("three", [_curve([0, 0]), _curve([1, 1]), _curve([2, 5])]),
        CurveGroup("one", [_curve([4, 4])]),
    ]
    figure = learning_curve_figure([CurvePanel("Task", groups)], smooth=1)
    (axes,) = figure.axes
    *runs, (places, mean), alone = _lines(axes)
    assert runs == [([1000, 2000], each) for each in ([0, 0], [1, 1], [2, 5])]
    assert (places[0], places[-1], mean[0], mean[-1]) == (1000, 2000, 1, 2)
    assert alone == ([1000, 2000], [4, 4])
    (band,) = axes.collections
    # At 1,000 steps 1 ± 4.303 * 1 / sqrt(3); the axes show the lines, from 0 to 5, and not all of the band.
    heights = [y for x, y in band.get_paths()[0].vertices if x == 1000]
    assert max(heights) == pytest.approx(1 + 2.484, abs=1e-3)
    assert axes.get_ylim() == pytest.approx((-0.4, 5.4))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["three | 2", "one | 4"]


@pytest.mark.parametrize(("seconds", "unit", "last"), [(10.0, "s", 20.0), (120.0, "min", 4.0), (7200.0, "h", 4.0)])
def test_time_is_drawn_in_a_unit_that_is_named(seconds, unit, last):
    panel = CurvePanel("Task", [CurveGroup("a", [_curve([0, 1], seconds=seconds)])])
    (axes,) = learning_curve_figure([panel], by="time", smooth=1).axes
    assert axes.get_xlabel() == f"time since training began ({unit})"
    assert _lines(axes)[0][0][-1] == last


def test_tasks_stand_side_by_side_each_with_axes_of_its_own():
    panels = [
        CurvePanel("A", [CurveGroup("a", [_curve([0, 1], scores=[1, 2])])]),
        CurvePanel("B", [CurveGroup("b", [_curve([500, 600, 700])])]),
    ]
    figure = learning_curve_figure(panels, smooth=1)
    above_a, above_b, _, below_b = figure.axes
    assert (above_a.get_title("left"), above_b.get_title("left")) == ("A", "B")
    assert above_a.get_ylim()[1] < 2 < above_b.get_ylim()[0]
    assert _lines(below_b) == [([], [])]


def test_the_only_evaluation_of_each_run_is_a_point():
    curves = [_curve([0, 1], scores=[np.nan, score]) for score in (4, 8)]
    _, below = learning_curve_figure([CurvePanel("Task", [CurveGroup("two", curves)])]).axes
    assert _lines(below) == [([2000], [4]), ([2000], [8]), ([2000], [6])]
    assert [line.get_marker() for line in below.lines] == ["o", "o", "o"]


def test_a_flat_or_empty_curve_can_be_drawn(tmp_path):
    groups = [CurveGroup("flat", [_curve([3.0])]), CurveGroup("none", [_curve([np.nan, np.nan])])]
    learning_curve_figure([CurvePanel("Task", groups)]).savefig(tmp_path / "curve.png")
