"""The settings of an evaluation, and how the command line fills them."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.flags import read_flags
from ml_pipeline.trading.settings import MarketConditions

Split = Literal["train", "validation", "test", "all"]


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """On what a policy is evaluated, and where the report is written.

    Raises UserError where a value is out of range.
    """

    split: Split | None = None
    """Part of the market to evaluate on; none: test, or everything with --data."""

    certify: bool = False
    """Replay the orders in vectorbt, and fail if its equity differs by more than 1e-9; needs the extra certify."""

    output_dir: Path | None = None
    """Folder for the report; none: the run folder for its best.pt as trained, else evaluation-WHAT in it."""

    def __post_init__(self) -> None:
        if self.split is not None:
            check_choice("split", self.split, ["train", "validation", "test", "all"])


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ReportConfig):
    """What is evaluated, and on what.

    Raises UserError where a value is out of range.
    """

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, whose best policy is evaluated, or a checkpoint, such as checkpoints/RUN/latest.pt."""

    eval_episodes: int | None = None
    """Number of episodes in a Gymnasium environment; none: as many as the run had."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_episodes is not None:
            check_count("eval_episodes", self.eval_episodes)


@dataclass(frozen=True, kw_only=True)
class EvaluationStart:
    """What one call of the command line asks for. changes: settings of `MarketConditions` other than as trained.
    notice: how the run was chosen, if nobody named it."""

    config: EvaluationConfig
    changes: Mapping[str, Any]
    notice: str | None = None


def _as_trained(each: Field[Any], hint: Any) -> tuple[str, Any, Any]:
    """A flag of training with its description; where it is not given, the value of training stays."""
    default: Any = field(default=each.default) if each.default is not MISSING else field(default_factory=dict)
    return each.name, Annotated[hint, tyro.conf.arg(help_behavior_hint="(default: as trained)")], default


_HINTS = get_type_hints(MarketConditions)
ChangesOfMarket = make_dataclass(
    "ChangesOfMarket",
    [_as_trained(each, _HINTS[each.name]) for each in fields(MarketConditions)],
    bases=(MarketConditions,),
    frozen=True,
    namespace={"__doc__": MarketConditions.__doc__},
)
"""`MarketConditions` as flags, each of which is as trained where it is not given."""
CommandLine = make_dataclass(
    "CommandLine", [("evaluation", EvaluationConfig), ("market", ChangesOfMarket)], frozen=True, kw_only=True
)


def parse_evaluation(argv: Sequence[str], *, prog: str, description: str = "") -> EvaluationStart:
    """Read the command line. Raises UserError about whatever cannot be used; exits with code 0 after --help."""
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    changes = {each.name: flags.pop(each.name) for each in fields(MarketConditions) if each.name in flags}
    return EvaluationStart(config=EvaluationConfig(**flags), changes=changes)
