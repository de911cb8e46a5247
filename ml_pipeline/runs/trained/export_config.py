"""The settings of an export, and how the command line fills them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import tyro

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.flags import parse_settings

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What is exported, and as what.

    Raises UserError where a value is none of its choices.
    """

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, whose best policy is exported, or a checkpoint, such as checkpoints/RUN/latest.pt."""

    format: Format = "onnx"
    """File format: onnx, for onnxruntime (writing it needs the extra onnx), or torch, a program of torch.export."""

    output: Path | None = None
    """File to write; none: the checkpoint's name with .onnx or .pt2."""

    def __post_init__(self) -> None:
        check_choice("format", self.format, get_args(Format))

    @property
    def path(self) -> Path:
        """Where the file goes."""
        return self.output or self.checkpoint.with_suffix(SUFFIXES[self.format])


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    export: ExportConfig = field()


def parse_export(argv: Sequence[str], *, prog: str, description: str = "") -> ExportConfig:
    """Read the command line. Raises UserError about whatever cannot be used; exits with code 0 after --help."""
    return parse_settings(argv, CommandLine, prog=prog, description=description).export
