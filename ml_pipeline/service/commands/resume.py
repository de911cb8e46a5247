"""Command: queue a run that has ended, to continue from its checkpoint.

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
    """The run to resume."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the first characters of the id, or the run folder."""

    total_timesteps: int | None = None
    """Length of training in environment steps, including those already done; none: as before. A finished run needs a
    larger number."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The flags of the command."""

    resume: ResumeConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Queue the run; return 0, or exit with code 2 and an error message if that is impossible."""
    with entry(prog):
        resume = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["resume"].sentence).resume
        root = root_of_runs(resume.root)
        folder = find_run(root, resume.run)
        if folder.parent != root:
            raise UserError(
                f"{folder} is not a run of {root}; pass its root as --root, or resume it without a service: "
                f"ml-pipeline train --resume {folder}"
            )
        request = {"do": "resume", "run": folder.name, "total_timesteps": resume.total_timesteps}
        with naming_flags("total_timesteps"):
            has_checkpoint = ask_service(root, request)
        how = "continues from its checkpoint" if has_checkpoint else "has no checkpoint and starts again"
        print(f"{folder.name} is queued; it {how}.")
    return 0
