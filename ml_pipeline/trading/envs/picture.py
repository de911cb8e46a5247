"""Pictures of a run: matplotlib figures from ledgers, imported only where something is drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.market.data import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AGENT = "#0b5fff"
# Curves that span more than this factor are drawn on a logarithmic scale.
_SPANS_MUCH = 5.0


def run_picture(ledger: Ledger) -> NDArray[np.uint8]:
    """uint8 (height, width, 3): closes as multiples of their first, positions as parts of equity, and equity."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    above, middle, below = figure.subplots(3, 1, sharex=True)
    equity = np.maximum(ledger["equity"], 1e-12)
    for symbol in symbols_of(ledger):
        close = ledger[f"close_{symbol}"]
        listed = np.flatnonzero(~np.isnan(close))
        first = close[listed[0]] if listed.size else 1.0
        above.plot(ledger["time"], close / first, linewidth=1, label=symbol)
        middle.plot(ledger["time"], ledger[f"position_{symbol}"] * np.nan_to_num(close) / equity, linewidth=1)
    below.plot(ledger["time"], ledger["equity"], color=AGENT, linewidth=1.2)
    for axes, title in ((above, "close / first close"), (middle, "position / equity"), (below, "equity")):
        axes.set_ylabel(title)
        plain(axes)
    if len(symbols_of(ledger)) <= 8:
        above.legend(frameon=False, ncols=8, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    figure.autofmt_xdate()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def money_axis(axes: "Axes", curves: Sequence[FloatArray], label: str) -> None:
    """The vertical axis of the curves, which it shows in plain numbers: by factors where they span much."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lowest, highest = min(float(c.min()) for c in curves), max(float(c.max()) for c in curves)
    logarithmic = lowest > 0 and highest / lowest > _SPANS_MUCH
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    form = ",.0f" if highest >= 1000 else ".4g"
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:{form}}"))
    axes.set_ylabel(f"{label}, log scale" if logarithmic else label)


def plain(axes: "Axes") -> None:
    """Nothing drawn that says nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d9dce1", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
