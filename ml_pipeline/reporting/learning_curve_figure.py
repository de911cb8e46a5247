"""The figure of learning curves: training above, evaluations below. A group of runs is a mean with a 95 % interval."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ml_pipeline.reporting.chart_style import style_axes
from ml_pipeline.reporting.learning_curves import By, FloatArray, LearningCurve, mean_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#0b5fff", "#e07b00", "#1f8a4c", "#7a4fd0", "#c62f2f", "#00838f", "#8d6e63", "#d81b60", "#5f6b7a", "#9e9d24")
_STYLES = ("-", "--", ":", "-.")
_WIDTH_IN, _HEIGHT_IN = 8.0, 3.0


@dataclass(frozen=True)
class CurveGroup:
    """Runs drawn as a mean with its interval, or a single run drawn as a line."""

    label: str
    curves: Sequence[LearningCurve]


@dataclass(frozen=True)
class CurvePanel:
    """One column of the figure: groups with comparable returns of one task. score_unit: if all groups share it."""

    title: str
    groups: Sequence[CurveGroup]
    score_unit: str | None = None


def learning_curve_figure(panels: Sequence[CurvePanel], *, by: By = "steps", smooth: int = 10) -> "Figure":
    """One column per panel: returns of training episodes, and below them the scores of evaluations, if any.

    smooth: number of iterations in the moving average of returns.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = [curve for panel in panels for group in panel.groups for curve in group.curves]
    n_rows = 1 + any(np.isfinite(curve.scores).any() for curve in curves)
    figure = Figure(figsize=(_WIDTH_IN * len(panels), _HEIGHT_IN * n_rows + 0.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(n_rows, len(panels), sharex="col", squeeze=False)
    unit_s, unit = _time_unit(max((curve.seconds[-1] for curve in curves if len(curve.seconds)), default=0.0))
    for column, panel in enumerate(panels):
        above, below = grid[0, column], grid[-1, column]
        for group, color, style in _looks(panel.groups):
            draw = _Drawing(group, color, style, by=by, scale=1.0 if by == "steps" else 1 / unit_s)
            draw.returns(above, smooth)
            if n_rows == 2:
                draw.scores(below)
        iterations = f"{smooth} iterations" if smooth > 1 else "1 iteration"
        above.set_ylabel(f"return of training episodes\n(mean over {iterations})")
        if n_rows == 2:
            below.set_ylabel("score of evaluations" + (f"\n({panel.score_unit})" if panel.score_unit else ""))
        below.set_xlabel("environment steps" if by == "steps" else f"time since training began ({unit})")
        _finish(above, below, panel, by)
        if len(curves) > 1:
            above.legend(
                fontsize=8.5, loc="best", framealpha=0.8, edgecolor="none", title="return, last 5 %", title_fontsize=8.5
            )
    return figure


class _Drawing:
    """Draws one group in its color and line style."""

    def __init__(self, group: CurveGroup, color: str, style: str, *, by: By, scale: float) -> None:
        self._group = group
        self._look: dict[str, Any] = {"color": color, "linestyle": style}
        self._by = by
        self._scale = scale

    def returns(self, axes: "Axes", smooth: int) -> None:
        if len(self._group.curves) == 1 and smooth > 1:
            (curve,) = self._group.curves
            axes.plot(*self._known(curve, curve.returns), color=self._look["color"], linewidth=0.7, alpha=0.25)
        self._draw(axes, [self._known(curve, curve.smoothed(smooth)) for curve in self._group.curves], marker="")

    def scores(self, axes: "Axes") -> None:
        self._draw(axes, [self._known(curve, curve.scores) for curve in self._group.curves], marker="o")

    def _draw(self, axes: "Axes", curves: Sequence[tuple[FloatArray, FloatArray]], *, marker: str) -> None:
        points: dict[str, Any] = {
            "marker": marker,
            "markersize": 3.5,
            "linewidth": 1.5,
            "label": _with_figure(self._group),
        }
        if len(curves) == 1:
            axes.plot(*curves[0], **self._look, **points)
            return
        for x, y in curves:
            axes.plot(x, y, color=self._look["color"], linewidth=0.6, alpha=0.35, marker=marker, markersize=2.5)
        together = mean_curve(curves)
        is_point = len(together.x) == 1  # each run has a single evaluation
        axes.plot(together.x, together.mean, **self._look, **{**points, "marker": marker if is_point else ""})
        low, high = together.mean - together.half_width, together.mean + together.half_width
        axes.fill_between(together.x, low, high, color=self._look["color"], alpha=0.15, linewidth=0)

    def _known(self, curve: LearningCurve, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        known = np.isfinite(y)
        return curve.at(self._by)[known] * self._scale, y[known]


def _with_figure(group: CurveGroup) -> str:
    """The label, with the mean over runs of the return in the last 5 % of their steps, if any episode ended there."""
    returns = np.array([curve.last_return() for curve in group.curves])
    known = returns[np.isfinite(returns)]
    return f"{group.label} | {known.mean():,.4g}" if len(known) else group.label


def _looks(groups: Sequence[CurveGroup]) -> Iterator[tuple[CurveGroup, str, str]]:
    for i, group in enumerate(groups):
        yield group, _COLORS[i % len(_COLORS)], _STYLES[i // len(_COLORS) % len(_STYLES)]


def _finish(above: "Axes", below: "Axes", panel: CurvePanel, by: By) -> None:
    from matplotlib.ticker import EngFormatter

    for axes in {above, below}:
        style_axes(axes)
        axes.set_ylim(*_limits(axes))
    if by == "steps":
        below.xaxis.set_major_formatter(EngFormatter(sep=""))
    below.set_xlim(left=0)
    above.set_title(panel.title, fontsize=10, loc="left")


def _limits(axes: "Axes") -> tuple[float | None, float | None]:
    """The range of the lines without their intervals; those of two or three runs are so wide that they flatten them."""
    values = np.concatenate([np.empty(0), *(np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines)])
    if not len(values):
        return None, None
    low, high = float(values.min()), float(values.max())
    margin = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    return low - margin, high + margin


def _time_unit(seconds: float) -> tuple[float, str]:
    """The time unit for the axis: its length in seconds, and its name."""
    return next((unit for unit in ((3600.0, "h"), (60.0, "min")) if seconds > 3 * unit[0]), (1.0, "s"))
