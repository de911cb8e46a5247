"""The evaluation as one HTML page that needs no network: table, charts and warnings in one file."""

import html
import io
import json
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.evaluation.figures import equity_figure, exposure_figure, sensitivity_figure, trades_figure
from ml_pipeline.trading.evaluation.report import as_json, remarks, table_rows, warning, without_nan
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.evaluation.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { border-bottom: 1px solid #c4c9d2; }
img { width: 100%; } ul { padding-left: 1.2rem; }
.warning { background: #fdecea; border-left: 4px solid #c62f2f; padding: .6rem 1rem; }
.months td { font-size: .85rem; padding: .15rem .45rem; } .up { color: #1f8a4c; } .down { color: #c62f2f; }
"""


def write_page(path: Path, evaluation: Evaluation, sensitivity: Sensitivity, *, certified: str | None = None) -> None:
    """Write the page. certified: the sentence of `certify_ledger`, if there is one."""
    header, *rows = table_rows(evaluation)
    warning_text = warning(evaluation)
    notes = [sensitivity.sentence(), *remarks(evaluation), *([certified] if certified else [])]
    parts = [
        f"<h1>{html.escape(evaluation.title)}</h1>",
        f'<p class="warning">{html.escape(warning_text)}</p>' if warning_text else "",
        _table(header, rows),
        "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes) + "</ul>",
        "<h2>Equity and drawdown</h2>",
        _picture(equity_figure(evaluation), "Equity of the agent and of what it must beat; drawdown beneath"),
        "<h2>Exposure</h2>",
        _picture(exposure_figure(evaluation.agent), "Net and gross exposure as parts of the equity"),
        "<h2>Trades on the price</h2>",
        _picture(trades_figure(evaluation.agent), "Closes, with what was bought and sold"),
        "<h2>Monthly returns of the agent</h2>",
        _months(evaluation.agent),
        "<h2>What costs and late orders take</h2>",
        _picture(sensitivity_figure(sensitivity, evaluation.rules.fee_bps), "Return by fee, and by bars of delay"),
    ]
    body = "\n".join(part for part in parts if part)
    title = html.escape(evaluation.title)
    page = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    path.write_text(f"{page}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n", encoding="utf-8")


def write_metrics(path: Path, evaluation: Evaluation, sensitivity: Sensitivity) -> None:
    """Write every number of the page as JSON."""
    figures = as_json(evaluation) | {
        "return_by_fee_bps": without_nan({f"{fee:g}": value for fee, value in sensitivity.by_fee.items()}),
        "return_by_delay_bars": without_nan({str(delay): value for delay, value in sensitivity.by_delay.items()}),
        "break_even_fee_bps": sensitivity.break_even_fee_bps,
    }
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def monthly_returns(ledger: Ledger) -> dict[int, dict[int, float]]:
    """Simple returns by year and month (1 to 12), each from the last equity of the month before."""
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
