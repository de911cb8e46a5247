"""Command: list the deployed models, or the versions of one model and its history.

ml-pipeline models
ml-pipeline models eurusd_5m --json
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.json_object import finite
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.terminal.run_table import GAP, bare_table, figure, printable, text_of
from ml_pipeline.monitoring.console import entry
from ml_pipeline.tuning.promotion.model_store import ModelStore, Version, model_names, models_folder

_SHORTENED, _LEAST = ("STUDY", "MODEL"), 8
"""The columns that are shortened in a narrow window, in this order, and their smallest width."""
_STYLES = {"current": "green", "damaged": "red", "deleted": "red"}


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """The models to list."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")]
    """Name of the model whose versions are listed; none: all models."""

    models_dir: Path | None = None
    """Folder of models; none: models/."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print a JSON list with one object per model, for scripts."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The groups of settings that flags can set."""

    models: ModelsConfig = field()


def main(argv: list[str], *, prog: str = "models") -> int:
    """Print the table; return 0. Exits with code 2 and one sentence if there is no such model."""
    with entry(prog):
        asked = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["models"].sentence).models
        if len(asked.name) > 1:
            raise UserError(f'Name one model at a time, but got "{asked.name[0]}" and "{asked.name[1]}".')
        models = models_folder(asked.models_dir)
        stores = [ModelStore(models, name) for name in asked.name or model_names(models)]
        for store in stores:
            store.require_there()
        if asked.json:
            print(json.dumps([model_as_json(store) for store in stores], indent=2, allow_nan=False))
        elif not stores:
            print(f"No models in {shown_path(models)} yet; promote one with `ml-pipeline promote STUDY`.")
        else:
            console = Console(highlight=False)
            width = console.width if console.is_terminal else None
            _show(rows_of_versions(stores[0]) if asked.name else rows_of_models(stores), console, width)
            for line in switch_lines(stores[0]) if asked.name else ():
                print(line if width is None else textwrap.fill(line, width, subsequent_indent="  "))
    return 0


class Rows(NamedTuple):
    """A table: its column titles, the titles of numeric columns, and its cells."""

    titles: Sequence[str]
    figures: frozenset[str]
    cells: Sequence[Sequence[str]]


def _show(rows: Rows, console: Console, width: int | None) -> None:
    """width: columns of the window, to which names of studies are shortened; None, as for a pipe: print all in full."""
    table = bare_table()
    for title, column_width in _widths(rows, width).items():
        justify = "right" if title in rows.figures else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", width=column_width)  # type: ignore[arg-type]
    for row in rows.cells:
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    if width is None:
        print(*text_of(table), sep="\n")
    else:
        console.print(table)


def _widths(rows: Rows, width: int | None) -> dict[str, int]:
    """The width of each column, in characters."""
    widths = {
        title: max(map(cell_len, [title, *cells])) for title, *cells in zip(rows.titles, *rows.cells, strict=True)
    }
    over = 0 if width is None else sum(widths.values()) + GAP * (len(widths) - 1) - width
    for title in _SHORTENED:
        if over > 0 and title in widths:
            shorter = max(min(widths[title], _LEAST), widths[title] - over)
            over -= widths[title] - shorter
            widths[title] = shorter
    return widths


_MINUTES = 16  # characters of an ISO time up to its minutes
_MOST_SWITCHES = 10


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
    """One line per switch, the latest last; if there are many, only the last ones."""
    switches = store.history()
    lines = [f"{len(switches) - _MOST_SWITCHES:,} earlier switches"] if len(switches) > _MOST_SWITCHES else []
    for switch in switches[-_MOST_SWITCHES:]:
        before = "" if switch.before is None else f"v{switch.before} -> "
        found = " (by hand, or by a process killed before it recorded the switch)" if switch.action == "found" else ""
        lines.append(f"{_minutes(switch.when)}  {switch.action}  {before}v{switch.after}{found}")
    return lines


def model_as_json(store: ModelStore) -> dict[str, Any]:
    """Everything about a model, for scripts."""
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
        figure(finite(statistics.get("dsr"))),
        _in_standard_errors(compared.get("difference"), compared.get("standard_error")),
    ]


def _origin(promotion: Mapping[str, Any]) -> list[str]:
    study, trial = promotion.get("study"), promotion.get("trial")
    return [str(study or "-"), "-" if trial is None else str(trial), figure(finite(promotion.get("value")))]


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
