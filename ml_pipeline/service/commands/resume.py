"""Command: let a run that has ended go on from its checkpoint, in the service's queue.

ml-pipeline resume CartPole-v1-seed0-2026
ml-pipeline resume CartPole-v1-seed0-2026 --total-timesteps 200000
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import naming_flags, parse_settings
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.service.channel import ask_service
from ml_pipeline.service.control import find_run

PROG = "resume"


@dataclass(frozen=True)
class ResumeConfig:
    """Which run goes on."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the beginning of one, or its folder."""

    total_timesteps: int | None = None
    """Environment steps to train for in all; none: as before. A run that has finished needs more than it had."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    resume: ResumeConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Queue it; exit with code 2, after one sentence, where it cannot go on or no service runs."""
    with entry(prog):
        resume = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["resume"].sentence).resume
        root = root_of_runs(resume.root)
        folder = find_run(root, resume.run)
        if folder.parent != root:
            raise UserError(
                f"{folder} is no run of {root}; name its root by --root, or go on with it by "
                f"`ml-pipeline train --resume {folder}`."
            )
        request = {"do": "resume", "run": folder.name, "total_timesteps": resume.total_timesteps}
        with naming_flags("total_timesteps"):
            has_checkpoint = ask_service(root, request)
        how = "goes on from its checkpoint" if has_checkpoint else "has no checkpoint, and begins anew"
        print(f"{folder.name} is queued; it {how}.")
    return 0
