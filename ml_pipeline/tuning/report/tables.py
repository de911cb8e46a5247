"""The tables of a study's page: all trials, and what went wrong how often."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.reporting.interactive_page import SortableTable, TableColumn
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runtime.regular_file import path_inside
from ml_pipeline.tuning.report.chart_data import utc
from ml_pipeline.tuning.report.setting_names import shown_setting
from ml_pipeline.tuning.report.study_trials import TrialRow

_LONGEST_REASON = 300
_MOST_NUMBERS = 12


def trials_table(rows: Sequence[TrialRow], study_folder: Path, value_unit: str | None = None) -> SortableTable:
    """Every trial, whatever became of it. A trial whose run folder is here leads there."""
    value = f"value, {value_unit}" if value_unit else "value"
    links = [folder_link(row.folders[0], study_folder) if row.folders else "" for row in rows]
    columns = [
        TableColumn("trial", "whole", [row.number for row in rows]),
        TableColumn("state", "word", [row.state for row in rows]),
        TableColumn(value, "number", _numbers([row.value for row in rows]), exact=True),
        TableColumn("run folder", "word", [" ".join(row.folders) for row in rows], links=links),
        *_setting_columns(rows),
        TableColumn("steps", "number", _numbers([row.global_step for row in rows]), exact=True),
        TableColumn("seconds", "number", _numbers([_seconds(row) for row in rows]), exact=True),
        TableColumn("began (UTC)", "word", [_moment(row) for row in rows]),
        TableColumn("host", "word", [row.host for row in rows]),
        TableColumn("why", "word", [why(row) for row in rows]),
    ]
    if any(row.validation_sharpe is not None for row in rows):
        sharpe = _numbers([row.validation_sharpe for row in rows])
        columns.insert(3, TableColumn("Sharpe ratio, validation", "number", sharpe, exact=True))
    return SortableTable("", columns)


def failures_table(rows: Sequence[TrialRow]) -> SortableTable | None:
    """Each reason once, with how often it was met, and in which trials; None where no trial failed."""
    by_reason: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.state in {"failed", "impossible"}:
            by_reason[row.state, row.reason or "no reason was recorded"].append(row.number)
    if not by_reason:
        return None
    ordered = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return SortableTable(
        "",
        [
            TableColumn("reason", "word", [in_one_line(reason, _LONGEST_REASON) for (_, reason), _ in ordered]),
            TableColumn("state", "word", [state for (state, _), _ in ordered]),
            TableColumn("times", "whole", [len(numbers) for _, numbers in ordered]),
            TableColumn("trials", "word", [_listed(numbers) for _, numbers in ordered]),
        ],
    )


def folder_link(name: str, study_folder: Path) -> str:
    """The address of a run's page, or of its folder, relative to the study's; "" where it is not here.

    Names come from a storage that others write, too: none leads out of the study's folder.
    """
    folder = path_inside(study_folder, name)
    if folder is None or not folder.is_dir():
        return ""
    return f"./{quote(name)}/{PAGE_FILE if (folder / PAGE_FILE).is_file() else ''}"


def why(row: TrialRow) -> str:
    """Why a trial ended as it did, and which other one it goes back to."""
    parts = [in_one_line(row.reason, _LONGEST_REASON)] if row.reason else []
    if row.retry_of is not None:
        parts.append(f"goes on with trial {row.retry_of}, which was interrupted")
    if row.continues is not None:
        parts.append(f"continues trial {row.continues}")
    return "; ".join(parts)


def _setting_columns(rows: Sequence[TrialRow]) -> list[TableColumn]:
    columns = []
    for name in dict.fromkeys(name for row in rows for name in row.params):
        shown = shown_setting(name, rows)
        if shown is not None:
            columns.append(TableColumn(shown.name, "number", _numbers(shown.values), exact=True))
            continue
        values = [row.params.get(name) for row in rows]
        if all(value is None or _is_number(value) for value in values):
            columns.append(TableColumn(name, "number", _numbers(values), exact=True))
        else:
            words = [written(row.params[name]) if name in row.params else "" for row in rows]
            columns.append(TableColumn(name, "word", [in_one_line(word, 80) for word in words]))
    return columns


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _seconds(row: TrialRow) -> float | None:
    return None if row.began is None or row.ended is None else (row.ended - row.began).total_seconds()


def _moment(row: TrialRow) -> str:
    return "" if row.began is None else f"{utc(row.began):%Y-%m-%d %H:%M:%S}"


def _listed(numbers: Sequence[int]) -> str:
    first = ", ".join(str(number) for number in numbers[:_MOST_NUMBERS])
    return first if len(numbers) <= _MOST_NUMBERS else f"{first} and {len(numbers) - _MOST_NUMBERS} more"
