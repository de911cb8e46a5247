"""A study as one HTML page that needs no network: the verdict in words, then the figures behind it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ml_pipeline.config.wording import counted, in_one_line, written
from ml_pipeline.reporting.html_page import bullet_list, html_page, html_table, paragraph
from ml_pipeline.reporting.interactive_page import asset, interactive_parts, interactive_style, json_block
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runtime.files import alone, written_whole
from ml_pipeline.tuning.report.study_trials import Importance, TrialRow, n_finished, setting_name
from ml_pipeline.tuning.report.tables import chart_data, failures_table, folder_link, trials_table, why
from ml_pipeline.tuning.report.winner_test import WinnerTest

_PACKAGE = "ml_pipeline.tuning.report"
_LONGEST_VALUE = 120
_SHARES = ("total_return", "cagr", "volatility", "max_drawdown", "time_in_market", "win_rate")
"""Figures of an evaluation that are shown in percent, also for baselines."""
_COUNTED = ("complete", "pruned", "failed", "impossible", "running")
_LEGEND = (
    ("complete", "complete"),
    ("pruned", "pruned, at its last value"),
    ("failed", "failed or impossible (crosses)"),
    ("winner", "the winner, and the best value so far"),
)


@dataclass(frozen=True, kw_only=True)
class StudyPage:
    """Everything that the page shows.

    n_trials: the planned number; None if unknown. winner, winner_folder: its row, and the folder of the run that
    represents it. verdict: sentences, the main one first. evidence: None if there are no returns to judge.
    statistics: rows of (name, value, meaning). logits: of the test for overfitting.
    identity: the study's definition, as groups of names and values. value_unit: of trials, None if unknown.
    """

    name: str
    folder: Path
    rows: Sequence[TrialRow]
    n_trials: int | None
    winner: TrialRow | None
    winner_folder: str | None
    verdict: Sequence[str]
    evidence: bool | None
    statistics: Sequence[tuple[str, str, str]]
    test: WinnerTest
    importance: Importance
    logits: ArrayLike | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    value_unit: str | None = None


def write_study_page(path: Path, page: StudyPage) -> None:
    """Write the page atomically, even if other processes write it too. Raises OSError if it cannot be written."""
    failures = failures_table(page.rows)
    tables = [trials_table(page.rows, page.folder, page.value_unit), *([failures] if failures else [])]
    _, (trials, *others), end = interactive_parts(np.empty(0, "datetime64[s]"), [], tables)
    charts = chart_data(
        page.rows,
        winner=page.winner.number if page.winner else None,
        order=list(page.importance.shares),
        logits=page.logits,
        unit=page.value_unit,
    )
    parts = [
        _verdict(page),
        _facts(page),
        _winner(page),
        *_test(page),
        *_statistics(page),
        *_charts(page),
        *(["<h2>Failures</h2>", *others] if failures else []),
        f"<h2>{'All ' if len(page.rows) > 1 else ''}{counted(len(page.rows), 'trial')}</h2>"
        '<p class="hint">Click a column header to sort, or press Tab and Enter.</p>',
        f'<div id="trials">{trials}</div>',
        *_searched(page),
        json_block("study", charts),
        *end,
        f"<script>{asset('study.js', _PACKAGE)}</script>",
    ]
    text = html_page(f"Study {page.name}", parts, style=interactive_style() + asset("study.css", _PACKAGE))
    with alone(path.with_name(f".{path.name}.lock")), written_whole(path, "w", encoding="utf-8") as file:
        file.write(text)


def _verdict(page: StudyPage) -> str:
    kind = {True: " good", False: " bad", None: ""}[page.evidence]
    first, *others = page.verdict
    rest = "".join(map(paragraph, others))
    return f'<div class="verdict{kind}"><p><b>{escape(first)}</b></p>{rest}</div>'


def _facts(page: StudyPage) -> str:
    states = Counter[str](row.state for row in page.rows)
    finished = f"{n_finished(page.rows):,}" + ("" if page.n_trials is None else f" of {page.n_trials:,}")
    name = "best value" + (f", {page.value_unit}" if page.value_unit else "")
    facts = [
        (finished, "trials finished"),
        *((f"{states[name]:,}", name) for name in _COUNTED if states[name]),
        *([(f"{page.winner.value:,.5g}", name)] if page.winner and page.winner.value is not None else []),
        (f"{len(page.test.openings):,}", "times the test was opened"),
    ]
    boxes = "".join(
        f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in facts
    )
    return f'<div class="facts">{boxes}</div>'


def _winner(page: StudyPage) -> str:
    if page.winner is None:
        return "<h2>The winner</h2><p>There is no winner.</p>"
    winner, folder = page.winner, page.winner_folder or " ".join(page.winner.folders)
    link = folder_link(folder, page.folder)
    shown = f'<a href="{escape(link)}">{escape(folder)}</a>' if link else escape(folder or "unknown")
    rows = [["setting", "value"], *([name, _value(value)] for name, value in winner.settings.items())]
    remark = paragraph(f"{why(winner)}.") if why(winner) else ""
    unit = f" ({page.value_unit})" if page.value_unit else ""
    return (
        f"<h2>The winner: trial {winner.number}</h2><p>Value {winner.value:,.6g}{unit}. Its run: {shown}.</p>{remark}"
        + _plain_table(rows)
    )


def _test(page: StudyPage) -> list[str]:
    parts = ["<h2>The test</h2>", bullet_list(page.test.sentences, "sentences")]
    for opening in page.test.openings:
        if opening.result is None:
            continue
        link = folder_link(opening.folder, page.folder)
        told = f'; its <a href="{escape(link)}">report</a>' if link.endswith(PAGE_FILE) else ""
        rows = [
            ["figure", "value"],
            *([_figure(name), _figure_value(name, value)] for name, value in opening.result.items()),
        ]
        parts.append(f"<h3>Trial {opening.trial}{told}</h3>{_plain_table(rows)}")
    return parts


def _statistics(page: StudyPage) -> list[str]:
    if not page.statistics:
        return []
    rows = [["statistic", "value", "meaning"], *map(list, page.statistics)]
    parts = ["<h2>Luck or skill</h2>", _plain_table(rows)]
    if page.logits is not None and len(np.asarray(page.logits)):
        parts += [
            '<h3 class="plot-title">Overfitting (CSCV): the best in half of the bars, ranked in the other half</h3>',
            '<div><div id="logits"></div></div>',
            '<p class="hint">At 0 or less (red), that trial ranks in the middle or lower. The share of such splits is '
            "the probability of backtest overfitting.</p>",
        ]
    return parts


def _charts(page: StudyPage) -> list[str]:
    if not any(row.value is not None for row in page.rows):
        return []
    legend = "".join(f'<span><i style="background: var(--{color})"></i>{text}</span>' for color, text in _LEGEND)
    has_settings = any(row.params for row in page.rows)
    return [
        f'<h2>Value by trial</h2><div class="legend">{legend}</div><div><div id="history"></div></div>',
        "<h2>Importance of settings</h2>",
        paragraph(page.importance.sentence),
        _bars({setting_name(name, page.rows): share for name, share in page.importance.shares.items()}),
        *(
            [
                '<h2>Value by setting</h2><div class="slices" id="slices"></div>',
                '<h2>Parallel coordinates</h2><p class="hint" id="parallel-told"></p>'
                '<div class="rows"><div id="parallel"></div></div>',
            ]
            if has_settings
            else []
        ),
        '<h2>Timeline</h2><div><div id="timeline"></div></div>',
    ]


def _bars(shares: Mapping[str, float]) -> str:
    largest = max(shares.values(), default=0.0) or 1.0
    rows = "".join(
        f'<span>{escape(name)}</span><div><i style="width: {100 * share / largest:.1f}%"></i></div>'
        f"<span>{share:.1%}</span>"
        for name, share in shares.items()
    )
    return f'<div class="bars">{rows}</div>' if shares else ""


def _searched(page: StudyPage) -> list[str]:
    parts = ["<h2>Search space and settings</h2>"] if page.identity else []
    for name, content in page.identity.items():
        pairs = content.items() if isinstance(content, Mapping) else [("", content)]
        rows = [[str(name), ""], *([str(key), _value(value)] for key, value in pairs)]
        parts.append(_plain_table(rows))
    return parts


def _plain_table(rows: Sequence[Sequence[str]]) -> str:
    return f'<div class="plain">{html_table(rows)}</div>'


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return in_one_line(written(value), _LONGEST_VALUE)


def _figure(name: str) -> str:
    """A figure's name in words: "sharpe_se" is "Sharpe, standard error".

    >>> _figure("buy_and_hold_total_return")
    'buy and hold total return'
    >>> _figure("mean_return_se")
    'mean return, standard error'
    """
    return name.removesuffix("_se").replace("_", " ") + (", standard error" if name.endswith("_se") else "")


def _figure_value(name: str, value: Any) -> str:
    """A figure with its unit.

    >>> _figure_value("max_drawdown", -0.108952), _figure_value("sharpe", 1.23456789), _figure_value("sharpe", None)
    ('-10.9 %', '1.2346', 'undefined')
    """
    if isinstance(value, int | float) and name.removesuffix("_se").endswith(_SHARES):
        return f"{100 * value:,.1f} %"
    return _number(value)


def _number(value: Any) -> str:
    return "undefined" if value is None else f"{value:,.5g}" if isinstance(value, int | float) else str(value)
