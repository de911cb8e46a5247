"""The tables of a study's page (all trials, and the reasons for failures) and the data of its charts."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike
from optuna.distributions import BaseDistribution, CategoricalDistribution

from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.reporting.interactive_page import SortableTable, TableColumn
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.tuning.report.study_trials import TrialRow, shown_setting

_LONGEST_REASON = 300
_MOST_NUMBERS = 12


def trials_table(rows: Sequence[TrialRow], study_folder: Path, value_unit: str | None = None) -> SortableTable:
    """Every trial in any state. A trial links to its run folder if the folder exists here."""
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
    """Each reason once, with its count and its trials; None if no trial failed."""
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
    """The link to a run's page or folder, relative to the study's folder; "" if it is not here.

    Other programs can write the names in a storage, so links never lead out of the study's folder.
    """
    folder = path_inside(study_folder, name)
    if folder is None or not folder.is_dir():
        return ""
    return f"./{quote(name)}/{PAGE_FILE if (folder / PAGE_FILE).is_file() else ''}"


def why(row: TrialRow) -> str:
    """Why a trial ended, and which earlier trial it continues."""
    parts = [in_one_line(row.reason, _LONGEST_REASON)] if row.reason else []
    if row.retry_of is not None:
        parts.append(f"resumes trial {row.retry_of}, which was interrupted")
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


_LONGEST_WORD = 60
_N_BINS = 40


def chart_data(
    rows: Sequence[TrialRow],
    *,
    winner: int | None,
    order: Sequence[str] = (),
    logits: ArrayLike | None = None,
    unit: str | None = None,
) -> dict[str, Any]:
    """The data for `assets/study.js`. order: settings that come first. logits: of the overfitting test.

    unit: of the values; None if unknown.
    """
    return {
        "unit": unit or "value",
        "number": [row.number for row in rows],
        "state": [row.state for row in rows],
        "value": [row.value for row in rows],
        "best": _best_so_far(rows),
        "began": [_duration_s(row.began) for row in rows],
        "ended": [_duration_s(row.ended) for row in rows],
        "host": [_short(row.host) for row in rows],
        "settings": [_setting(name, rows) for name in _ordered(rows, order)],
        "winner": winner,
        "logits": None if logits is None else _histogram(np.asarray(logits, dtype=np.float64)),
    }


def _best_so_far(rows: Sequence[TrialRow]) -> list[float | None]:
    """The highest value of the complete trials up to each one, in the order of their numbers."""
    best: float | None = None
    found = []
    for row in rows:
        if row.state == "complete" and row.value is not None:
            best = row.value if best is None else max(best, row.value)
        found.append(best)
    return found


def _ordered(rows: Sequence[TrialRow], first: Sequence[str]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row.params)
    return [*(name for name in first if name in names), *(name for name in names if name not in {*first})]


def _setting(name: str, rows: Sequence[TrialRow]) -> dict[str, Any]:
    """A setting as numbers with their scale, or as indices into its list of choices."""
    shown = shown_setting(name, rows)
    if shown is not None:
        return {"name": _short(shown.axis), "words": None, "log": True, "values": list(shown.on_axis)}
    kinds = [row.distributions[name] for row in rows if name in row.distributions]
    values = [row.params.get(name) for row in rows]
    if any(isinstance(kind, CategoricalDistribution) for kind in kinds) or not all(map(_is_number_or_none, values)):
        choices = _choices(kinds)
        words = [None if name not in row.params else _short(row.params[name]) for row in rows]
        known = list(dict.fromkeys([*choices, *(word for word in words if word is not None)]))
        place = {word: i for i, word in enumerate(known)}
        return {
            "name": _short(name),
            "words": known,
            "log": False,
            "values": [None if word is None else place[word] for word in words],
        }
    numbers = [float(value) if name in row.params else None for value, row in zip(values, rows, strict=True)]  # type: ignore[arg-type]
    is_log = any(bool(getattr(kind, "log", False)) for kind in kinds)
    is_log = is_log and all(number is None or number > 0 for number in numbers)
    return {"name": _short(name), "words": None, "log": is_log, "values": numbers}


def _choices(kinds: Sequence[BaseDistribution]) -> list[str]:
    last = next((kind for kind in reversed(kinds) if isinstance(kind, CategoricalDistribution)), None)
    return [] if last is None else [_short(choice) for choice in last.choices]


def _histogram(logits: np.ndarray[Any, Any]) -> Mapping[str, Any] | None:
    logits = logits[np.isfinite(logits)]
    if not len(logits):
        return None
    reach = max(float(np.abs(logits).max()), 1e-9)
    counts, edges = np.histogram(-logits, bins=_N_BINS, range=(-reach, reach))  # so that 0 lies in the bin left of it
    return {"edges": (-edges[::-1]).tolist(), "counts": counts[::-1].tolist()}


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def _duration_s(time: datetime | None) -> float | None:
    return None if time is None else round(time.timestamp(), 3)


def utc(time: datetime) -> datetime:
    """A time of Optuna's, which is local and without a zone, in UTC."""
    return time.astimezone(UTC)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST_WORD else f"{text[: _LONGEST_WORD - 1]}…"
