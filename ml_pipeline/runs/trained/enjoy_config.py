"""The settings of `enjoy`, and how the command line fills them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import tyro

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings

Render = Literal["human"]


@dataclass(frozen=True, kw_only=True)
class EnjoyConfig:
    """Which policy plays, how often, and what is recorded.

    Raises UserError if a value is out of range, or two of them exclude each other.
    """

    run: tyro.conf.Positional[Path]
    """Run folder, whose best policy plays, or a checkpoint, such as checkpoints/RUN/latest.pt."""

    episodes: int | None = None
    """Episodes to play; none is 3, and for trading one pass through the test split."""

    video: Path | None = None
    """File to record to: .mp4, which needs the extra video, or .gif."""

    seed: int | None = None
    """Seed of the first episode, one more for each after it; none plays the episodes of the run's evaluation."""

    stochastic: bool = False
    """Sample actions, as in training, instead of taking the likeliest."""

    render: Render | None = None
    """Show a window while playing (human); none shows nothing."""

    def __post_init__(self) -> None:
        if self.episodes is not None:
            check_count("episodes", self.episodes)
        if self.seed is not None:
            check_count("seed", self.seed, minimum=0)
        if self.render is not None:
            check_choice("render", self.render, get_args(Render))
        if self.render is not None and self.video is not None:
            raise UserError("--render shows the frames and --video records them; leave one of the two out.")


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    enjoy: EnjoyConfig = field()


def parse_enjoy(argv: Sequence[str], *, prog: str, description: str = "") -> EnjoyConfig:
    """Read the command line. Raises UserError about whatever cannot be used; exits with code 0 after --help."""
    return parse_settings(argv, CommandLine, prog=prog, description=description).enjoy
