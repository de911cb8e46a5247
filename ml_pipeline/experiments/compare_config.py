"""The settings of a comparison, and how the command line fills them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import tyro

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.reporting.learning_curves import By

_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The runs to compare, and how to draw them.

    Raises UserError if a value is out of range.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, such as checkpoints/A checkpoints/B. Runs that differ only in the seed share one curve, their
    mean."""

    by: By = "steps"
    """Horizontal axis of the curves: environment steps, or time since training began."""

    smooth: int = 10
    """Number of iterations over which returns are averaged; 1: no smoothing."""

    output: Path = Path("comparison.png")
    """Picture file to write: .png, .svg or .pdf."""

    def __post_init__(self) -> None:
        check_choice("by", self.by, get_args(By))
        check_count("smooth", self.smooth)
        if self.output.suffix.lower() not in _SUFFIXES:
            raise UserError(f'output must be a .png, .svg or .pdf file, but got "{self.output}".')


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    compare: CompareConfig = field()


def parse_compare(argv: Sequence[str], *, prog: str, description: str = "") -> CompareConfig:
    """Read the command line. Raises UserError if a setting is invalid; exits with code 0 after --help."""
    return parse_settings(argv, CommandLine, prog=prog, description=description).compare
