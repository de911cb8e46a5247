"""The heading of a run's report: its name, its seed, the command that repeats it, and its settings."""

import contextlib
import html
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.wording import shortly, written
from ml_pipeline.reporting.html_page import html_table
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.files import written_whole

_TITLE_ENDS = "</h1>"


def write_report_heading(report: Path, run_folder: Path) -> None:
    """Insert the heading below the title of the page in the folder `report`, if page and settings exist.

    If the settings cannot be read, such as after a bad edit, the report is unchanged.
    """
    page, settings_file = report / PAGE_FILE, run_folder / SETTINGS_FILE
    if not (page.is_file() and settings_file.is_file()):
        return
    with contextlib.suppress(UserError):
        heading = _heading(run_folder, read_settings(settings_file, TrainConfig))
        before, mark, after = page.read_text(encoding="utf-8").partition(_TITLE_ENDS)
        with written_whole(page, "w", encoding="utf-8") as file:
            file.write(f"{before}{mark}\n{heading}{after}")


def command_of(settings: Mapping[str, Any]) -> str:
    """The command that starts a run with these settings, with only the flags that differ from the defaults.

    >>> command_of({"env_id": "CartPole-v1", "n_envs": 8, "seed": 0, "hidden_sizes": (64, 64)})
    'ml-pipeline train --env-id CartPole-v1 --n-envs 8'
    """
    words = ["ml-pipeline", "train"]
    differing = _differing(settings)
    if differing.get("total_timesteps") is not None:
        differing.pop("iterations", None)  # only one of the two sets the length
    for name, value in differing.items():
        if isinstance(value, bool):
            words.append(flag_of(name) if value else flag_of(name).replace("--", "--no-", 1))
        else:
            values = list(map(str, value)) if isinstance(value, tuple) and value else [written(value)]
            words += [flag_of(name), *values]
    return shlex.join(words)


def _heading(run_folder: Path, settings: Mapping[str, Any]) -> str:
    differing, usual = _differing(settings), _defaults()
    seed = settings.get("seed", usual["seed"])
    rows = [[name, shortly(value), shortly(usual[name])] for name, value in differing.items()]
    table = html_table([["setting", "value", "default"], *rows]) if rows else "<p>All are defaults.</p>"
    return (
        f"<p>Run <b>{html.escape(run_folder.resolve().name)}</b>, seed {html.escape(str(seed))}: "
        f"<code>{html.escape(command_of(settings))}</code></p>\n"
        f"<details><summary>Settings that differ from the defaults: {len(rows)}</summary>{table}</details>\n"
    )


def _differing(settings: Mapping[str, Any]) -> dict[str, Any]:
    usual = _defaults()
    return {name: value for name, value in settings.items() if name in usual and value != usual[name]}


def _defaults() -> dict[str, Any]:
    return {each.name: getattr(group, each.name) for group in vars(TrainConfig()).values() for each in fields(group)}
