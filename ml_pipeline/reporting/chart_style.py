"""The style of all charts: colors, axes and scales. matplotlib is imported only when something is drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AGENT_COLOR, HOLD_COLOR, EQUAL_COLOR, RANDOM_COLOR = "#0b5fff", "#e07b00", "#7a4fd0", "#8a8f98"
UP_COLOR, DOWN_COLOR = "#1f8a4c", "#c62f2f"
# If the largest value is more than this multiple of the smallest, the scale is logarithmic.
_LOG_SCALE_FACTOR = 5.0


def style_axes(axes: "Axes") -> None:
    """No frame at the top and right, and a light horizontal grid behind the curves."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d9dce1", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def style_money_axis(axes: "Axes", curves: Sequence[NDArray[np.float64]], label: str) -> None:
    """Label the vertical axis of `curves` and write its numbers plainly; use a logarithmic scale for a wide range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lowest, highest = min(float(c.min()) for c in curves), max(float(c.max()) for c in curves)
    logarithmic = lowest > 0 and highest / lowest > _LOG_SCALE_FACTOR
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    form = ",.0f" if highest >= 1000 else ".4g"
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:{form}}"))
    axes.set_ylabel(f"{label}, log scale" if logarithmic else label)
