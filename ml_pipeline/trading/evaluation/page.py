"""The evaluation as one HTML page that needs no network: table, charts and warnings in one file."""

import html
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.reporting.html_page import html_picture, html_table, write_html_page
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.evaluation.curves import Drawdown, drawdowns, monthly_returns
from ml_pipeline.trading.evaluation.figures import equity_figure, exposure_figure, sensitivity_figure, trades_figure
from ml_pipeline.trading.evaluation.remarks import headlines, remarks
from ml_pipeline.trading.evaluation.report import as_json, table_rows, without_nan
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.evaluation.sensitivity import LARGEST_FEE_BPS, TOLERANCE_BPS, Sensitivity

_MOST_DRAWDOWNS = 10
_STYLE = """
.warning { background: #fdecea; border-left: 4px solid #c62f2f; padding: .6rem 1rem; }
.months td { font-size: .85rem; padding: .15rem .45rem; } .up { color: #1f8a4c; } .down { color: #c62f2f; }
"""


def write_page(path: Path, evaluation: Evaluation, sensitivity: Sensitivity, *, certified: str | None = None) -> None:
    """Write the page. certified: the sentence of `certify_ledger`, if there is one."""
    notes = [sensitivity.break_even.sentence(), *remarks(evaluation), *([certified] if certified else [])]
    parts = [
        *(f'<p class="warning">{html.escape(sentence)}</p>' for sentence in headlines(evaluation)),
        html_table(table_rows(evaluation)),
        "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes) + "</ul>",
        "<h2>Equity and drawdown</h2>",
        html_picture(equity_figure(evaluation), "Equity of the agent and of what it must beat; drawdown beneath"),
        "<h2>Exposure</h2>",
        html_picture(exposure_figure(evaluation.agent), "Net and gross exposure as parts of the equity"),
        "<h2>Trades on the price</h2>",
        html_picture(trades_figure(evaluation.agent), "Closes, with what was bought and sold"),
        "<h2>Monthly returns of the agent</h2>",
        _months(evaluation.agent),
        "<h2>What costs and late orders take</h2>",
        html_picture(
            sensitivity_figure(sensitivity, evaluation.rules.fee_bps),
            "Return of the same orders by fee, and by bars of delay",
        ),
    ]
    write_html_page(path, evaluation.title, parts, style=_STYLE)


def write_metrics(path: Path, evaluation: Evaluation, sensitivity: Sensitivity) -> None:
    """Write every number of the page as JSON."""
    times, equity = evaluation.agent["time"], evaluation.agent["equity"]
    figures = as_json(evaluation) | {
        "drawdowns": [_with_times(drawdown, times) for drawdown in drawdowns(equity, most=_MOST_DRAWDOWNS)],
        "monthly_returns": monthly_returns(times, equity),
        "return_by_fee_bps": without_nan({f"{fee:g}": value for fee, value in sensitivity.by_fee.items()}),
        "return_by_delay_bars": without_nan({str(delay): value for delay, value in sensitivity.by_delay.items()}),
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


def _months(ledger: Ledger) -> str:
    names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    head = "".join(f"<th>{name}</th>" for name in ("", *names, "year"))
    rows = []
    for year, months in monthly_returns(ledger["time"], ledger["equity"]).items():
        whole = float(np.prod([1 + value for value in months.values()]) - 1)
        cells = [months.get(month) for month in range(1, 13)] + [whole]
        marked = "".join(
            "<td></td>" if cell is None else f'<td class="{"up" if cell >= 0 else "down"}">{cell:+.1%}</td>'
            for cell in cells
        )
        rows.append(f"<tr><td>{year}</td>{marked}</tr>")
    return f'<table class="months"><tr>{head}</tr>{"".join(rows)}</table>'
