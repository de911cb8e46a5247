"""Command: ask a run that goes on for other numbers of workers or environments; with or without a service.

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
    """What changes, from the end of the run's iteration on."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the beginning of one, or its folder."""

    n_workers: int | Literal["auto", "dynamic"] | None = None
    """Worker processes, 0 for none; auto and dynamic let the run choose. Results do not depend on it."""

    n_envs: int | None = None
    """Environments. Results depend on it."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    scale: ScaleConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Ask; exit with code 2, after one sentence, where the run does not go on."""
    with entry(prog):
        scale = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["scale"].sentence).scale
        if scale.n_workers is None and scale.n_envs is None:
            raise UserError("Say what changes: --n-workers or --n-envs.")
        root = root_of_runs(scale.root)
        folder = find_run(root, scale.run, status={"running"})
        with naming_flags("n_workers", "n_envs"):
            scale_run(root, folder, n_workers=scale.n_workers, n_envs=scale.n_envs)
        print(f"{folder.name} is asked; `ml-pipeline logs {folder.name}` tells what it does at its iteration's end.")
    return 0
