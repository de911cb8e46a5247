"""Command: return a deployed model to its previous version, or to a given one.

ml-pipeline rollback eurusd_5m
ml-pipeline rollback eurusd_5m --to v2
"""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.deployed import CURRENT, version_number
from ml_pipeline.tuning.promotion.model_store import ModelStore, models_folder


@dataclass(frozen=True, kw_only=True)
class RollbackConfig:
    """The model, and the version to return to.

    Raises UserError if `to` is not a version.
    """

    name: tyro.conf.Positional[str]
    """Name of the model, as ml-pipeline models lists it."""

    to: str | None = None
    """Version to return to, such as v2; none: the version that was deployed before the current one."""

    models_dir: Path | None = None
    """Folder of models; none: models/."""

    def __post_init__(self) -> None:
        if self.to is not None and version_number(self.to) is None:
            raise UserError(f'--to must be a version, such as v2, but got "{in_one_line(self.to, longest=40)}".')


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The groups of settings that flags can set."""

    rollback: RollbackConfig = field()


def main(argv: list[str], *, prog: str = "rollback") -> int:
    """Switch and print the new version; return 0. Exits with code 2 and one sentence if there is no such version."""
    with entry(prog):
        asked = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["rollback"].sentence).rollback
        store = ModelStore(models_folder(asked.models_dir), asked.name)
        switch = store.roll_back(None if asked.to is None else version_number(asked.to))
        before = f" in place of v{switch.before}" if switch.before is not None else ""
        print(f"v{switch.after} of {store.name} is deployed{before}: {shown_path(store.folder / CURRENT)}")
    return 0
