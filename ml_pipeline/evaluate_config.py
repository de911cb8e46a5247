"""The settings of an evaluation, and how the command line fills them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.flags import read_flags
from ml_pipeline.config.settings import build

Split = Literal["train", "validation", "test", "all"]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is evaluated, and on what.

    Raises UserError where a value is out of range.
    """

    checkpoint: tyro.conf.Positional[Path]
    """Checkpoint to evaluate, such as checkpoints/RUN/best.pt."""

    data: Path | None = None
    """Other market data than those trained on: a CSV or Parquet file, or a folder with a file a symbol."""

    split: Split | None = None
    """Part of the market; none is test and, with --data, all of it."""

    eval_episodes: int | None = None
    """Episodes in an environment that is no market; none is as many as the run had."""

    initial_cash: float | None = None
    """Money at the start; none is that of training, as for the costs below."""

    fee_bps: float | None = None
    """Fee on traded value, in basis points, on buying and selling alike."""

    fixed_fee: float | None = None
    """Money that each order costs besides."""

    slippage_bps: float | None = None
    """Slippage, and half the spread where the data have no quotes, in basis points of traded value."""

    borrow_bps_per_year: float | None = None
    """What a short position pays a year for what it borrows, in basis points of its value."""

    certify: bool = False
    """Have vectorbt replay the orders, and fail where its equity differs by more than 1e-9; needs the extra certify."""

    output_dir: Path | None = None
    """Folder for the report; none is the run's for its best.pt as trained, and evaluation-WHAT in it for all else."""

    def __post_init__(self) -> None:
        if self.eval_episodes is not None:
            check_count("eval_episodes", self.eval_episodes)
        if self.split is not None:
            check_choice("split", self.split, ["train", "validation", "test", "all"])


@dataclass(frozen=True, kw_only=True)
class _CommandLine:
    evaluation: EvaluationConfig = field()


def parse_evaluation(argv: Sequence[str], *, prog: str) -> EvaluationConfig:
    """Read the command line. Raises UserError about whatever cannot be used; exits with code 0 after --help."""
    description = "Evaluate a trained agent on a single environment."
    flags = read_flags(argv, _CommandLine, prog=prog, description=description)
    return build(_CommandLine, flags).evaluation
