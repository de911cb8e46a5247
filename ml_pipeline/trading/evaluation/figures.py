"""The figures of a report. All have the same margins, so that their time axes line up on the page."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes, style_money_axis
from ml_pipeline.trading.evaluation.metrics import drawdown_fraction
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.evaluation.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HOLD, _EQUAL, _RANDOM, _DOWN, _UP = "#e07b00", "#7a4fd0", "#8a8f98", "#c62f2f", "#1f8a4c"
_MOST_PRICES = 4  # assets whose trades are drawn
_WIDTH_IN, _LEFT_IN, _RIGHT_IN, _ABOVE_IN, _BELOW_IN = 10.0, 0.95, 0.25, 0.35, 0.55


def equity_figure(evaluation: Evaluation, title: str | None = None) -> "Figure":
    """Equity of the agent and its baselines, and their drawdowns below."""
    figure, (above, below) = _panels([3.6, 1.4], title=title)
    mean = evaluation.figures["random"]["total_return"]
    for i, ledger in enumerate(evaluation.random):
        label = None if i else f"random {mean:+,.1%} (mean of {len(evaluation.random)})"
        above.plot(ledger["time"], ledger["equity"], color=_RANDOM, alpha=0.5, linewidth=0.7, label=label)
    for name, ledger, color, style in (
        ("equal weight", evaluation.equal_weight, _EQUAL, (0, (4, 2))),
        ("buy and hold", evaluation.buy_and_hold, _HOLD, "-"),
        ("agent", evaluation.agent, AGENT_COLOR, "-"),
    ):
        if name.replace(" ", "_") not in evaluation.columns:
            continue
        total = evaluation.figures[name.replace(" ", "_")]["total_return"]
        look: dict[str, Any] = {"color": color, "linestyle": style}
        above.plot(ledger["time"], ledger["equity"], linewidth=1.5, label=f"{name} {total:+,.1%}", **look)
        below.plot(ledger["time"], drawdown_fraction(ledger["equity"]), linewidth=1.0, **look)
    drawn = (evaluation.agent, evaluation.buy_and_hold, evaluation.equal_weight, *evaluation.random)
    style_money_axis(above, [ledger["equity"] for ledger in drawn], "equity (account currency)")
    above.axhline(evaluation.rules.initial_cash, color="black", linewidth=0.6, alpha=0.4)
    _legend(above)
    _percent(below, "drawdown")
    below.set_xlabel("time of the bar, as in the data")
    return figure


def sensitivity_figure(sensitivity: Sensitivity, fee_bps: float) -> "Figure":
    """The total return by fee and by bars of delay, with numbers; the filled marker is the evaluation itself."""
    from matplotlib.ticker import PercentFormatter

    figure, (left, right) = _panels([2.2], columns=2)
    for axes, curve, label, actual in (
        (left, sensitivity.by_fee, "fee (bps)", fee_bps),
        (right, sensitivity.by_delay, "delay (bars)", 0),
    ):
        at, returns = list(curve), np.expm1(list(curve.values()))
        axes.plot(at, returns, color=AGENT_COLOR, marker="o", markersize=5, markerfacecolor="white")
        if actual in curve:
            axes.plot(actual, returns[at.index(actual)], color=AGENT_COLOR, marker="o", markersize=5)
        for i, (x, value) in enumerate(zip(at, returns, strict=True)):  # above and below, since 0 and 1 bps are close
            beside: dict[str, Any] = {"textcoords": "offset points", "xytext": (0, -13 if i % 2 else 7)}
            axes.annotate(f"{value:+.1%}", (x, value), ha="center", fontsize=8, **beside)
        axes.axhline(0, color="black", linewidth=0.6, alpha=0.5)
        axes.set_xticks(at)
        axes.set_xlabel(label)
        axes.set_ylabel("total return")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.margins(x=0.08, y=0.25)
    return figure


def _panels(heights_in: list[float], *, columns: int = 1, title: str | None = None) -> tuple["Figure", "list[Axes]"]:
    """A figure with one panel per height, in `columns`; margins in inches are the same in every figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    above = _ABOVE_IN + (0.3 if title else 0.0)
    between = _ABOVE_IN * (len(heights_in) - 1)
    height = sum(heights_in) + between + above + _BELOW_IN
    figure = Figure(figsize=(_WIDTH_IN, height), dpi=110)
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(heights_in), columns, sharex="col" if columns == 1 else False, squeeze=False, height_ratios=heights_in
    ).flatten()
    figure.subplots_adjust(
        left=_LEFT_IN / _WIDTH_IN,
        right=1 - _RIGHT_IN / _WIDTH_IN,
        top=1 - above / height,
        bottom=_BELOW_IN / height,
        hspace=_ABOVE_IN / float(np.mean(heights_in)),
        wspace=0.25,
    )
    for axes in panels:
        style_axes(axes)
    if columns == 1:
        locator = AutoDateLocator()
        panels[-1].xaxis.set_major_locator(locator)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    if title:
        figure.suptitle(title, fontsize=10.5, x=0.012, y=1 - 0.1 / height, va="top", ha="left")
    return figure, list(panels)


def _legend(axes: "Axes") -> None:
    axes.legend(frameon=False, ncols=4, fontsize=8.5, borderpad=0, loc="lower left", bbox_to_anchor=(0, 1))


def _percent(axes: "Axes", label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
