"""What the charts of a study's page are drawn from: one entry per trial, and one list per searched setting."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from optuna.distributions import BaseDistribution, CategoricalDistribution

from ml_pipeline.tuning.report.setting_names import shown_setting
from ml_pipeline.tuning.report.study_trials import TrialRow

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
    """Plain values for `assets/study.js`. order: names of settings that come first. logits: of the overfitting test.

    unit: of the values; None if unknown.
    """
    return {
        "unit": unit or "value",
        "number": [row.number for row in rows],
        "state": [row.state for row in rows],
        "value": [row.value for row in rows],
        "best": _best_so_far(rows),
        "began": [_seconds(row.began) for row in rows],
        "ended": [_seconds(row.ended) for row in rows],
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
    """A setting as numbers, with their scale, or as words, each by its place among the choices."""
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


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else round(time.timestamp(), 3)


def utc(time: datetime) -> datetime:
    """A time of Optuna's, which is the local one without a zone, in UTC."""
    return time.astimezone(UTC)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST_WORD else f"{text[: _LONGEST_WORD - 1]}…"
