"""The verdict as one HTML page that needs no network: figures, pictures and warnings, all in the file."""

import html
import io
import json
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ml_pipeline.trading.ledger import Ledger, symbols_of
from ml_pipeline.trading.metrics import drawdown_fraction
from ml_pipeline.trading.pictures import AGENT, plain
from ml_pipeline.trading.report import Evaluation, as_json, table_rows, warning, without_nan
from ml_pipeline.trading.studies import Studies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HOLD, _EQUAL, _RANDOM, _DOWN, _UP = "#e07b00", "#7a4fd0", "#8a8f98", "#c62f2f", "#1f8a4c"
_MOST_PRICES = 4  # assets whose trades are drawn

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { border-bottom: 1px solid #c4c9d2; }
img { width: 100%; } .warning { background: #fdecea; border-left: 4px solid #c62f2f; padding: .6rem 1rem; }
.months td { font-size: .85rem; padding: .15rem .45rem; } .up { color: #1f8a4c; } .down { color: #c62f2f; }
"""


def write_page(path: Path, evaluation: Evaluation, studies: Studies, *, certified: str | None = None) -> None:
    """Write the page; `certified` is what a second engine said of the ledger."""
    header, *rows = table_rows(evaluation)
    said = warning(evaluation)
    annualized = f"Annualized by {evaluation.calendar.periods_per_year:g} ({evaluation.calendar.reason})."
    parts = [
        f"<h1>{html.escape(evaluation.title)}</h1>",
        f'<p class="warning">{html.escape(said)}</p>' if said else "",
        _table(header, rows),
        f"<p>{html.escape(annualized)} {html.escape(studies.sentence())}</p>",
        f"<p>{html.escape(certified)}</p>" if certified else "",
        "<h2>Equity and drawdown</h2>",
        _picture(_draw_equity(evaluation), "Equity of the agent and of what it must beat; drawdown beneath"),
        "<h2>Exposure</h2>",
        _picture(_draw_exposure(evaluation.agent), "Net and gross exposure as parts of the equity"),
        "<h2>Trades on the price</h2>",
        _picture(_draw_trades(evaluation.agent), "Closes, with what was bought and sold"),
        "<h2>Monthly returns of the agent</h2>",
        _months(evaluation.agent),
        "<h2>What costs and late orders take</h2>",
        _picture(_draw_studies(studies), "Return by fee, and by bars of delay"),
    ]
    body = "\n".join(part for part in parts if part)
    title = html.escape(evaluation.title)
    page = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    path.write_text(f"{page}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n", encoding="utf-8")


def write_metrics(path: Path, evaluation: Evaluation, studies: Studies) -> None:
    """Every figure of the page as JSON."""
    figures = as_json(evaluation) | {
        "return_by_fee_bps": without_nan({f"{fee:g}": value for fee, value in studies.by_fee.items()}),
        "return_by_delay_bars": without_nan({str(delay): value for delay, value in studies.by_delay.items()}),
        "break_even_fee_bps": studies.break_even_fee_bps,
    }
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def monthly_returns(ledger: Ledger) -> dict[int, dict[int, float]]:
    """Simple returns by year and month (1 to 12), from the last equity of the month before."""
    months = ledger["time"].astype("datetime64[M]")
    ends = np.flatnonzero(np.append(months[1:] != months[:-1], True))
    equity = np.concatenate([ledger["equity"][:1], ledger["equity"][ends]])
    returns: dict[int, dict[int, float]] = {}
    for month, before, after in zip(months[ends].astype(int), equity[:-1], equity[1:], strict=True):
        if before > 0:
            returns.setdefault(1970 + int(month) // 12, {})[int(month) % 12 + 1] = float(max(after, 0.0) / before - 1)
    return returns


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _months(ledger: Ledger) -> str:
    names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    head = "".join(f"<th>{name}</th>" for name in ("", *names, "year"))
    rows = []
    for year, months in monthly_returns(ledger).items():
        whole = float(np.prod([1 + value for value in months.values()]) - 1)
        cells = [months.get(month) for month in range(1, 13)] + [whole]
        marked = "".join(
            "<td></td>" if cell is None else f'<td class="{"up" if cell >= 0 else "down"}">{cell:+.1%}</td>'
            for cell in cells
        )
        rows.append(f"<tr><td>{year}</td>{marked}</tr>")
    return f'<table class="months"><tr>{head}</tr>{"".join(rows)}</table>'


def _picture(figure: "Figure", description: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    data = b64encode(stream.getvalue()).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'


def _figure(height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_equity(evaluation: Evaluation) -> "Figure":
    figure = _figure(5.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 1])
    for i, ledger in enumerate(evaluation.random):
        above.plot(
            ledger["time"], ledger["equity"], color=_RANDOM, alpha=0.5, linewidth=0.7, label=None if i else "random"
        )
    for label, ledger, color in (
        ("equal weight", evaluation.equal_weight, _EQUAL),
        ("buy and hold", evaluation.buy_and_hold, _HOLD),
        ("agent", evaluation.agent, AGENT),
    ):
        above.plot(ledger["time"], ledger["equity"], color=color, linewidth=1.4, label=label)
        below.plot(ledger["time"], drawdown_fraction(ledger["equity"]), color=color, linewidth=1.0)
    above.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    _finish(above, "equity (money)")
    _finish(below, "drawdown", percent=True)
    return figure


def _draw_exposure(ledger: Ledger) -> "Figure":
    equity = np.where(ledger["equity"] > 0, ledger["equity"], np.nan)
    values = [ledger[f"position_{s}"] * np.nan_to_num(ledger[f"close_{s}"]) / equity for s in symbols_of(ledger)]
    figure = _figure(2.4)
    axes = figure.subplots()
    axes.fill_between(ledger["time"], np.abs(values).sum(axis=0), color=AGENT, alpha=0.15, linewidth=0, label="gross")
    axes.plot(ledger["time"], np.sum(values, axis=0), color=AGENT, linewidth=0.9, label="net")
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    _finish(axes, "part of equity", percent=True)
    return figure


def _draw_trades(ledger: Ledger) -> "Figure":
    traded = {
        s: np.abs(ledger[f"filled_{s}"] * np.nan_to_num(ledger[f"fill_price_{s}"])).sum() for s in symbols_of(ledger)
    }
    symbols = sorted(traded, key=lambda symbol: -traded[symbol])[:_MOST_PRICES]
    figure = _figure(2.6 * len(symbols))
    for axes, symbol in zip(np.atleast_1d(figure.subplots(len(symbols), 1, sharex=True)), symbols, strict=True):
        filled = ledger[f"filled_{symbol}"]
        axes.plot(ledger["time"], ledger[f"close_{symbol}"], color="#555b66", linewidth=0.7)
        for side, marker, color in ((filled > 0, "^", _UP), (filled < 0, "v", _DOWN)):
            prices = ledger[f"fill_price_{symbol}"][side]
            axes.scatter(ledger["time"][side], prices, s=12, marker=marker, color=color, linewidths=0)
        _finish(axes, symbol)
    return figure


def _draw_studies(studies: Studies) -> "Figure":
    figure = _figure(2.8)
    left, right = figure.subplots(1, 2)
    for axes, curve, label in ((left, studies.by_fee, "fee (bps)"), (right, studies.by_delay, "delay (bars)")):
        axes.plot(list(curve), np.expm1(list(curve.values())), color=AGENT, marker="o", markersize=4)
        axes.axhline(0, color="black", linewidth=0.6, alpha=0.5)
        axes.set_xticks(list(curve))
        axes.set_xlabel(label)
        _finish(axes, "total return", percent=True)
    return figure


def _finish(axes: "Axes", label: str, *, percent: bool = False) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylabel(label)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    plain(axes)
