"""Command: list the deployed models, or the versions of one and how it was switched between them.

ml-pipeline models
ml-pipeline models eurusd_5m --json
"""

import json
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.console import entry
from ml_pipeline.tuning.promotion.model_store import ModelStore, model_names, models_folder
from ml_pipeline.tuning.promotion.model_tables import (
    Rows,
    model_as_json,
    rows_of_models,
    rows_of_versions,
    switch_lines,
)

_PIPE_WIDTH = 10_000
_GAP = 2
_SHORTENED, _LEAST = ("STUDY", "MODEL"), 8
"""The columns that give way in a narrow window, this one first, and what is left of them."""
_STYLES = {"current": "green", "damaged": "red", "deleted": "red"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """Which models are listed."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")]
    """Name of the model whose versions are listed; none: all models."""

    models_dir: Path | None = None
    """Folder of models; none: models/."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print a JSON list with one object per model, for scripts."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    models: ModelsConfig = field()


def main(argv: list[str], *, prog: str = "models") -> int:
    """Print the table; return 0. Exits with code 2, after one sentence, where there is no such model."""
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
            print(f"No models in {shown_path(models)} yet; promote one by `ml-pipeline promote STUDY`.")
        else:
            console = Console(highlight=False)
            width = console.width if console.is_terminal else None
            _show(rows_of_versions(stores[0]) if asked.name else rows_of_models(stores), console, width)
            for line in switch_lines(stores[0]) if asked.name else ():
                print(line if width is None else textwrap.fill(line, width, subsequent_indent="  "))
    return 0


def _show(rows: Rows, console: Console, width: int | None) -> None:
    """width: columns of the window, into which the names of studies are shortened; None, as for a pipe: all in full."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for title, column_width in _widths(rows, width).items():
        justify = "right" if title in rows.figures else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", width=column_width)  # type: ignore[arg-type]
    for row in rows.cells:
        table.add_row(*(Text(_CONTROL.sub("?", cell), style=_STYLES.get(cell, "")) for cell in row))
    if width is not None:
        console.print(table)
        return
    plain = Console(color_system=None, width=_PIPE_WIDTH)
    with plain.capture() as captured:
        plain.print(table)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")


def _widths(rows: Rows, width: int | None) -> dict[str, int]:
    """How wide each column is, in columns of the window."""
    widths = {
        title: max(map(cell_len, [title, *cells])) for title, *cells in zip(rows.titles, *rows.cells, strict=True)
    }
    over = 0 if width is None else sum(widths.values()) + _GAP * (len(widths) - 1) - width
    for title in _SHORTENED:
        if over > 0 and title in widths:
            shorter = max(min(widths[title], _LEAST), widths[title] - over)
            over -= widths[title] - shorter
            widths[title] = shorter
    return widths
