"""Command: change the number of workers or environments of a run in progress; with or without a service.

ml-pipeline scale CartPole-v1-seed0-2026 --n-workers 4
ml-pipeline scale CartPole-v1-seed0-2026 --n-envs 16
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import naming_flags, parse_settings
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.service.control import find_run, scale_run

PROG = "scale"


@dataclass(frozen=True)
class ScaleConfig:
    """Changes that apply from the run's next iteration."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the first characters of the id, or the run folder."""

    n_workers: int | Literal["auto", "dynamic"] | None = None
    """New number of worker processes; 0: step in the trainer's process; auto, dynamic: the run chooses. It affects
    speed, never results. none: no change."""

    n_envs: int | None = None
    """New number of environments; it affects the results. none: no change."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The flags of the command."""

    scale: ScaleConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Send the request; return 0, or exit with code 2 and an error message if the run is not in progress."""
    with entry(prog):
        scale = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["scale"].sentence).scale
        if scale.n_workers is None and scale.n_envs is None:
            raise UserError("Nothing to change; pass --n-workers or --n-envs.")
        root = root_of_runs(scale.root)
        folder = find_run(root, scale.run, status={"running"})
        with naming_flags("n_workers", "n_envs"):
            scale_run(root, folder, n_workers=scale.n_workers, n_envs=scale.n_envs)
        print(f"{folder.name} changes after its current iteration; to see the result: ml-pipeline logs {folder.name}")
    return 0
