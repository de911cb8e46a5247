"""Reconcile the session in a folder and write the results to files.

The page works offline. It has both equity curves, their difference, and the tables.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.reconciliation.attribution import DivergentBar
from ml_pipeline.live.reconciliation.causes import MEANINGS
from ml_pipeline.live.reconciliation.costs import OrderFilled, write_realized_costs
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import Reconciliation, reconcile
from ml_pipeline.live.session_files import COSTS_MET_FILE, RECONCILIATION_FIGURES_FILE, RECONCILIATION_FILE
from ml_pipeline.reporting.chart_style import AGENT_COLOR, DOWN_COLOR, HOLD_COLOR
from ml_pipeline.reporting.html_page import bullet_list, html_table, paragraph, write_html_page
from ml_pipeline.reporting.interactive_page import (
    ZOOM_HINT,
    Curve,
    Marks,
    SortableTable,
    TableColumn,
    TimeChart,
    interactive_parts,
    interactive_style,
    padded,
)
from ml_pipeline.trading.market.data import FloatArray

# Most rows of a table, so that the page stays below 3 MB: those with the largest amounts.
_MOST_DIVERGENT, _MOST_FILLS = 5_000, 10_000
_STYLE = """
body { max-width: 72rem; }
.verdict { background: #eef3fd; color: #1c2330; border-left: 4px solid #0b5fff; padding: .6rem 1rem; }
"""


@dataclass(frozen=True, eq=False)
class ReconciledSession:
    """A reconciliation and its files. text: for a terminal."""

    found: Reconciliation
    page: Path
    figures: Path
    settings: Path

    @property
    def text(self) -> str:
        return self.found.text


def reconcile_session(folder: Path) -> ReconciledSession:
    """Run a session's bars through the backtest, compare, and write reconciliation.html, reconciliation.json and
    costs-met.yaml into its folder.

    The session may still be trading. Raises UserError if there is none, or its backtest cannot run.
    """
    found = reconcile(read_session(folder))
    written = ReconciledSession(
        found, folder / RECONCILIATION_FILE, folder / RECONCILIATION_FIGURES_FILE, folder / COSTS_MET_FILE
    )
    write_reconciliation_page(written.page, found)
    written.figures.write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    write_realized_costs(written.settings, found.record, found.costs)
    return written


def write_reconciliation_page(path: Path, found: Reconciliation) -> None:
    """Write the page; its charts share one time axis and can be zoomed."""
    times = found.attribution.rows["time"]
    tables = [
        (_divergent_table(found), _left_out(len(found.attribution.divergent), _MOST_DIVERGENT)),
        (_fills_table(found.filled, times), _left_out(len(found.filled), _MOST_FILLS)),
    ]
    tables = [(table, note) for table, note in tables if len(table.columns[0].values)]
    charts, places, end = interactive_parts(times, _charts(found), [table for table, _ in tables])
    causes, costs = found.cause_rows, found.cost_rows
    parts = [
        paragraph(found.verdict, "verdict"),
        bullet_list(found.sentences),
        ZOOM_HINT,
        *charts,
        *([f"<h2>Causes of the difference</h2>{html_table(causes)}"] if causes else []),
        _meanings(found),
        *([f"<h2>Costs, assumed and paid</h2>{html_table(costs)}"] if costs else []),
        _settings(found),
        *(part for place, (_, note) in zip(places, tables, strict=True) for part in (note, place)),
        *end,
    ]
    write_html_page(path, f"{found.record.name}: backtest against live", parts, style=interactive_style() + _STYLE)


def _charts(found: Reconciliation) -> list[TimeChart]:
    rows = found.attribution.rows
    equity, n = rows["equity"], len(rows["time"])
    tested, costs = (padded(found.attribution.backtest[name], n) for name in ("equity", "costs_paid"))
    at = np.array(sorted({each.bar for each in _shown(found.attribution.divergent)}), dtype=np.int64)
    divergent = [Marks("fills that differ", at, equity[at], DOWN_COLOR, "down")] if len(at) else []
    return [
        TimeChart(
            "Equity",
            "money",
            [
                Curve("session", equity, AGENT_COLOR, width=2.0),
                Curve("backtest", tested, HOLD_COLOR, dashed=True),
            ],
            divergent,
            height_px=320,
        ),
        TimeChart("Session minus backtest", "money", [Curve("difference", equity - tested, DOWN_COLOR)], height_px=170),
        TimeChart(
            "Costs paid",
            "money",
            [
                Curve("session", rows["costs_paid"], AGENT_COLOR, coarse=True),
                Curve("backtest", costs, HOLD_COLOR, dashed=True, coarse=True),
            ],
            height_px=130,
        ),
    ]


def _divergent_table(found: Reconciliation) -> SortableTable:
    shown = _shown(found.attribution.divergent)
    bars = np.array([each.bar for each in shown], dtype=np.int64)
    return SortableTable(
        "Where they differ",
        [
            TableColumn("cause", "word", [each.cause.replace("_", " ") for each in shown]),
            TableColumn("symbol", "word", [each.symbol for each in shown]),
            TableColumn("bar of the fill", "time", found.attribution.rows["time"][bars]),
            TableColumn("at once", "money", [each.at_once for each in shown]),
            TableColumn("bps", "number", [found.in_bps(each.at_once) for each in shown]),
            TableColumn("evidence", "word", [each.evidence for each in shown]),
        ],
        (np.maximum(bars - 1, 0), bars),
    )


def _fills_table(filled: Sequence[OrderFilled], times: NDArray[np.datetime64]) -> SortableTable:
    shown = sorted(filled, key=lambda each: -abs(each.slippage + each.costs - each.assumed_costs))[:_MOST_FILLS]
    shown.sort(key=lambda each: (each.bar, each.symbol))
    bars = np.array([each.bar + 1 for each in shown], dtype=np.int64)

    def bps(money: list[float]) -> FloatArray:
        return np.array([1e4 * each / order.value for each, order in zip(money, shown, strict=True)])

    return SortableTable(
        "Filled orders",
        [
            TableColumn("symbol", "word", [each.symbol for each in shown]),
            TableColumn("side", "word", [each.side for each in shown]),
            TableColumn("bar of the fill", "time", times[bars]),
            TableColumn("quantity", "number", [each.quantity for each in shown]),
            TableColumn("assumed price", "number", [each.assumed_price for each in shown]),
            TableColumn("price", "number", [each.price for each in shown]),
            TableColumn("slippage bps", "number", bps([each.slippage for each in shown])),
            TableColumn("costs bps", "number", bps([each.costs for each in shown])),
            TableColumn("s after the close", "number", [each.delay_s for each in shown]),
        ],
        (bars - 1, bars),
    )


def _shown(divergent: Sequence[DivergentBar]) -> list[DivergentBar]:
    """The ones with the largest amounts, in order of bars."""
    if len(divergent) <= _MOST_DIVERGENT:
        return list(divergent)
    most = sorted(divergent, key=lambda each: -abs(each.at_once))[:_MOST_DIVERGENT]
    return sorted(most, key=lambda each: (each.bar, each.symbol))


def _left_out(n: int, most: int) -> str:
    return f"<p>The {most:,} rows with the largest amounts, of {n:,}.</p>" if n > most else ""


def _meanings(found: Reconciliation) -> str:
    causes = [each.cause for each in found.attribution.causes]
    items = "".join(f"<dt><b>{cause.replace('_', ' ')}</b></dt><dd>{escape(MEANINGS[cause])}</dd>" for cause in causes)
    how = (
        "<p>The worth of a cause is the change of the final equity when it is added after those above it, including "
        "all consequences; “at once” is the part in the bars of its fills.</p>"
    )
    return f"{how}<dl>{items}</dl>" if items else ""


def _settings(found: Reconciliation) -> str:
    lines = "".join(f"{name}: {value!r}\n" for name, value in found.costs.settings.items())
    return f"<p>As settings for the next training (costs-met.yaml):</p><pre>{escape(lines)}</pre>"
