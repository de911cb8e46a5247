"""Draws a ledger as an array of pixels, for `render()`."""

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of


def render_ledger(ledger: Ledger) -> NDArray[np.uint8]:
    """Closes over their first close, positions over equity, and equity, as uint8 (height, width, 3)."""
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
    below.plot(ledger["time"], ledger["equity"], color=AGENT_COLOR, linewidth=1.2)
    for axes, title in ((above, "close / first close"), (middle, "position / equity"), (below, "equity")):
        axes.set_ylabel(title)
        style_axes(axes)
    if len(symbols_of(ledger)) <= 8:
        above.legend(frameon=False, ncols=8, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    figure.autofmt_xdate()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
