"""The evaluation as one HTML page that needs no network: warnings, tables, and charts that can be zoomed."""

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.reporting.html_page import html_picture, html_table, png_of, write_html_page
from ml_pipeline.reporting.interactive_page import interactive_parts, interactive_style
from ml_pipeline.trading.evaluation.curves import Drawdown, drawdowns, monthly_returns
from ml_pipeline.trading.evaluation.figures import sensitivity_figure
from ml_pipeline.trading.evaluation.page_charts import page_charts
from ml_pipeline.trading.evaluation.page_tables import (
    Observed,
    attribution_table,
    drawdown_table,
    months_table,
    random_returns,
    trades_table,
)
from ml_pipeline.trading.evaluation.remarks import headlines, remarks
from ml_pipeline.trading.evaluation.report import as_json, table_rows, without_nan
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.evaluation.sensitivity import LARGEST_FEE_BPS, TOLERANCE_BPS, Sensitivity

_MOST_DRAWDOWNS = 10
_STYLE = """
body { max-width: 72rem; }
.warning { background: #fdecea; color: #1c2330; border-left: 4px solid #c62f2f; padding: .6rem 1rem; }
.months td { font-size: .85rem; padding: .15rem .45rem; }
"""


def write_page(
    path: Path,
    evaluation: Evaluation,
    sensitivity: Sensitivity | None = None,
    *,
    observed: Observed | None = None,
    notes: Sequence[str] = (),
    marked_rows: Sequence[int] = (),
) -> None:
    """Write the page. Its charts share one time axis, can be zoomed, and are drawn from every bar.

    sensitivity: of the orders to fees and delays. observed: shown for each trade. notes: further sentences.
    marked_rows: rows of the ledger to mark, such as the start of folds.
    """
    sentences = [*(sensitivity.sentences() if sensitivity else []), *remarks(evaluation), *notes]
    charts = page_charts(evaluation, marked_rows)
    tables = [trades_table(evaluation, observed), attribution_table(evaluation), drawdown_table(evaluation)]
    chart_places, (trades, attribution, falls), end = interactive_parts(evaluation.agent["time"], charts, tables)
    parts = [
        *(f'<p class="warning">{html.escape(sentence)}</p>' for sentence in headlines(evaluation)),
        html_table(table_rows(evaluation)),
        "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences) + "</ul>",
        '<p class="hint">Drag across a chart to zoom all of them; the pointer shows values.</p>',
        *chart_places,
        trades,
        attribution,
        falls,
        "<h2>Monthly returns of the agent</h2>",
        months_table(evaluation.agent["time"], evaluation.agent["equity"]),
        f"<h2>Total returns of {len(evaluation.random)} random policies that trade as much</h2>",
        random_returns(evaluation),
        *_sensitivity_parts(evaluation, sensitivity),
        *end,
    ]
    write_html_page(path, evaluation.title, parts, style=interactive_style() + _STYLE)


def _sensitivity_parts(evaluation: Evaluation, sensitivity: Sensitivity | None) -> list[str]:
    if sensitivity is None:
        return []
    figure = sensitivity_figure(sensitivity, evaluation.rules.fee_bps)
    return [
        "<h2>What costs and late orders take</h2>",
        html_picture(png_of(figure), "Return of the same orders by fee, and by bars of delay"),
    ]


def write_metrics(path: Path, evaluation: Evaluation, sensitivity: Sensitivity) -> None:
    """Write every number of the page as JSON."""
    times, equity = evaluation.agent["time"], evaluation.agent["equity"]
    figures = as_json(evaluation) | {
        "drawdowns": [_with_times(drawdown, times) for drawdown in drawdowns(equity, most=_MOST_DRAWDOWNS)],
        "monthly_returns": monthly_returns(times, equity),
        "return_by_fee_bps": without_nan({f"{fee:g}": value for fee, value in sensitivity.by_fee.items()}),
        "return_by_delay_bars": without_nan({str(delay): value for delay, value in sensitivity.by_delay.items()}),
        "late_gain": None if (gain := sensitivity.late_gain) is None else without_nan(asdict(gain)),
        "break_even_fee_bps": sensitivity.break_even.fee_bps,
        "break_even": without_nan(asdict(sensitivity.break_even))
        | {"tolerance_bps": TOLERANCE_BPS, "largest_fee_bps": LARGEST_FEE_BPS},
    }
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _with_times(drawdown: Drawdown, times: NDArray[np.datetime64]) -> dict[str, Any]:
    """A drawdown with times in place of rows."""
    rows = {"peak": drawdown.peak, "trough": drawdown.trough, "end": drawdown.end}
    return asdict(drawdown) | {
        name: None if row is None else str(times[row].astype("datetime64[s]")) for name, row in rows.items()
    }
