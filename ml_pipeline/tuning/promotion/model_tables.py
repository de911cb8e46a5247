"""What there is to say about deployed models: rows of a table, lines below it, and JSON for scripts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.promotion.model_store import ModelStore, Version

_MINUTES = 16  # characters of an ISO time up to its minutes
_MOST_SWITCHES = 10


class Rows(NamedTuple):
    """A table: its titles, those of them whose cells are figures, and its cells."""

    titles: Sequence[str]
    figures: frozenset[str]
    cells: Sequence[Sequence[str]]


def rows_of_models(stores: Sequence[ModelStore]) -> Rows:
    """One row per model: which version is deployed, since when, and where it came from."""
    titles = ("MODEL", "CURRENT", "VERSIONS", "SINCE", "STUDY", "TRIAL", "VALUE")
    cells = [_model_cells(store) for store in stores]
    return Rows(titles, frozenset({"VERSIONS", "TRIAL", "VALUE"}), cells)


def rows_of_versions(store: ModelStore) -> Rows:
    """One row per version: whether it is or was deployed, where it came from, and why it was promoted."""
    titles = ("VERSION", "STATE", "PROMOTED", "STUDY", "TRIAL", "VALUE", "DSR", "BETTER BY")
    deployed = {switch.after for switch in store.history()}
    cells = [
        [version.name, _state(version, store.current, deployed), *_version_cells(version)]
        for version in store.versions()
    ]
    current = store.current
    if current is not None and store.deployed() is None:
        cells.append([f"v{current}", "deleted", *["-"] * 6])
    return Rows(titles, frozenset({"TRIAL", "VALUE", "DSR", "BETTER BY"}), cells)


def switch_lines(store: ModelStore) -> list[str]:
    """Every switch in a line, the latest last; of many the last ones."""
    switches = store.history()
    lines = [f"{len(switches) - _MOST_SWITCHES:,} earlier switches"] if len(switches) > _MOST_SWITCHES else []
    for switch in switches[-_MOST_SWITCHES:]:
        before = "" if switch.before is None else f"v{switch.before} -> "
        found = " (by hand, or by a process that was killed before it could say so)" if switch.action == "found" else ""
        lines.append(f"{_minutes(switch.when)}  {switch.action}  {before}v{switch.after}{found}")
    return lines


def model_as_json(store: ModelStore) -> dict[str, Any]:
    """All that is known of a model, for scripts."""
    current = store.current
    return {
        "name": store.name,
        "folder": str(store.folder),
        "current": None if current is None else f"v{current}",
        "versions": [{"version": version.name, **_promotion(version)} for version in store.versions()],
        "history": [switch.as_json() for switch in store.history()],
    }


def _model_cells(store: ModelStore) -> list[str]:
    version, current, switches = store.deployed(), store.current, store.history()
    since = _minutes(switches[-1].when) if switches else "-"
    promotion = {} if version is None else _promotion(version)
    name = "-" if current is None else f"v{current}" if version is not None else f"v{current}, deleted"
    return [store.name, name, str(len(store.versions())), since, *_origin(promotion)]


def _version_cells(version: Version) -> list[str]:
    promotion = _promotion(version)
    statistics = _mapping(promotion.get("statistics"))
    compared = _mapping(promotion.get("compared_with"))
    return [
        _minutes(str(promotion.get("when", "-"))),
        *_origin(promotion),
        _figure(statistics.get("dsr")),
        _in_standard_errors(compared.get("difference"), compared.get("standard_error")),
    ]


def _origin(promotion: Mapping[str, Any]) -> list[str]:
    study, trial = promotion.get("study"), promotion.get("trial")
    return [str(study or "-"), "-" if trial is None else str(trial), _figure(promotion.get("value"))]


def _state(version: Version, current: int | None, deployed: set[int]) -> str:
    try:
        _ = version.promotion
    except UserError:
        return "damaged"
    if version.number == current:
        return "current"
    return "earlier" if version.number in deployed else "unused"


def _promotion(version: Version) -> dict[str, Any]:
    try:
        return dict(version.promotion)
    except UserError as error:
        return {"damaged": str(error)}


def _in_standard_errors(difference: object, standard_error: object) -> str:
    """
    >>> _in_standard_errors(0.3, 0.1), _in_standard_errors(0.3, 0.0), _in_standard_errors(None, 1.0)
    ('3.0 SE', '-', '-')
    """
    known = isinstance(difference, int | float) and isinstance(standard_error, int | float) and standard_error > 0
    return f"{difference / standard_error:,.1f} SE" if known else "-"  # type: ignore[operator]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _minutes(when: str) -> str:
    """A time in UTC to its minutes.

    >>> _minutes("2026-01-02T03:04:05+00:00")
    '2026-01-02 03:04'
    """
    return when[:_MINUTES].replace("T", " ")


def _figure(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    return f"{value:,.4g}"
