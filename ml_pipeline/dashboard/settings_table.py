"""The settings of several runs side by side, and in which of them the runs differ; of one run, beside the defaults."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import TrainConfig

_LONGEST_VALUE = 2000


def settings_table(folders: Sequence[Path]) -> dict[str, Any]:
    """{"rows": [{"name", "values", "default", "differs"}], "notes": {run: sentence}}; values as text, None where a run
    has none.

    differs: from each other, and of one run alone, from the default. notes: for each run whose settings cannot be read,
    why.
    """
    settings: list[dict[str, str]] = []
    notes = {}
    for folder in folders:
        try:
            settings.append(_settings_of(folder))
        except UserError as error:
            settings.append({})
            notes[folder.name] = str(error)
    names = dict.fromkeys(name for each in settings for name in each)
    rows = []
    for name in names:
        values = [each.get(name) for each in settings]
        of_readable = {value for value, folder in zip(values, folders, strict=True) if folder.name not in notes}
        default = _defaults().get(name)
        compared = of_readable | {default} if len(folders) == 1 else of_readable
        rows.append({"name": name, "values": values, "default": default, "differs": len(compared) > 1})
    return {"rows": rows, "notes": notes}


@cache
def _defaults() -> dict[str, str]:
    return {name: _shown(value) for name, value in flatten(TrainConfig()).items()}


def _settings_of(folder: Path) -> dict[str, str]:
    path = folder / SETTINGS_FILE
    if path.is_symlink() or not path.is_file():
        raise UserError(f"{folder.name} holds no {SETTINGS_FILE} yet.")
    return {in_one_line(name): _shown(value) for name, value in read_mapping(path).items()}


def _shown(value: object) -> str:
    try:
        text = written(tuple(value) if isinstance(value, list) else value)
    except (TypeError, ValueError):  # YAML has more than JSON: dates, keys that are no texts
        text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
