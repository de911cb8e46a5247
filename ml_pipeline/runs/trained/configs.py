"""Settings of the commands on a trained run: evaluate, backtest, enjoy, export and import-sb3."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings, read_flags
from ml_pipeline.config.wording import shown_path
from ml_pipeline.runs.earlier_runs import newest_run_of
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import read_train_settings
from ml_pipeline.runs.trained.deployed import is_version_folder, resolved
from ml_pipeline.trading.settings import MarketConditions

Split = Literal["train", "validation", "test", "all"]


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The data to evaluate on, and where to write the report.

    Raises UserError if a value is out of range.
    """

    split: Split | None = None
    """Split of the market to evaluate on; none: test, or all bars if --data names data that the run was not trained
    on."""

    certify: bool = False
    """Repeat the orders in vectorbt, and fail if its equity differs from the report's by more than 1e-9; needs the
    extra certify."""

    output_dir: Path | None = None
    """Folder for the report; none: the run folder, if best.pt is evaluated with the settings of the training, otherwise
    a subfolder evaluation-WHAT."""

    def __post_init__(self) -> None:
        if self.split is not None:
            check_choice("split", self.split, ["train", "validation", "test", "all"])


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ReportConfig):
    """The policy to evaluate, and the data to evaluate it on.

    Raises UserError if a value is out of range.
    """

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, whose best policy is used, or a checkpoint, such as checkpoints/RUN/latest.pt."""

    eval_episodes: int | None = None
    """Number of episodes, for Gymnasium environments; none: as many as in the run's evaluations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_episodes is not None:
            check_count("eval_episodes", self.eval_episodes)


@dataclass(frozen=True, kw_only=True)
class EvaluationStart:
    """A parsed command line. changes: settings of `MarketConditions` that differ from training.
    notice: how the run was chosen, if it was not given."""

    config: EvaluationConfig
    changes: Mapping[str, Any]
    notice: str | None = None


def _as_trained(each: Field[Any], hint: Any) -> tuple[str, Any, Any]:
    """A training flag with its description; if it is not given, the training value stays."""
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
"""`MarketConditions` as flags, with the training values as defaults."""
EvaluationCommandLine = make_dataclass(
    "EvaluationCommandLine", [("evaluation", EvaluationConfig), ("market", ChangesOfMarket)], frozen=True, kw_only=True
)


def parse_evaluation(argv: Sequence[str], *, prog: str, description: str = "") -> EvaluationStart:
    """Read the command line. Raises UserError if a setting is invalid; exits with code 0 after --help."""
    flags = read_flags(argv, EvaluationCommandLine, prog=prog, description=description)
    changes = {each.name: flags.pop(each.name) for each in fields(MarketConditions) if each.name in flags}
    return EvaluationStart(config=EvaluationConfig(**flags), changes=changes)


@dataclass(frozen=True, kw_only=True)
class BacktestConfig(ReportConfig):
    """The run or model to backtest."""

    config: Path | None = None
    """Settings file of a training, whose newest run is backtested, or a deployed model, such as models/NAME/current;
    required."""


BacktestCommandLine = make_dataclass(
    "BacktestCommandLine", [("backtest", BacktestConfig), ("market", ChangesOfMarket)], frozen=True, kw_only=True
)


def parse_backtest(argv: Sequence[str], *, prog: str, description: str = "") -> EvaluationStart:
    """Read the command line, and find the run. Raises UserError if a setting is invalid; exits after --help."""
    if argv and not argv[0].startswith("-"):
        named = Path(argv[0])
        how = f"--config {named}" if named.is_file() or _version_of(named) is not None else None
        raise UserError(
            f"A backtest takes no bare path; use {how}."
            if how
            else f"A backtest takes a settings file, with --config FILE; evaluate the run {named} with "
            f"`ml-pipeline evaluate {named}`."
        )
    flags = read_flags(argv, BacktestCommandLine, prog=prog, description=description)
    changes = {each.name: flags.pop(each.name) for each in fields(MarketConditions) if each.name in flags}
    file = flags.pop("config", None)
    if file is None:
        raise UserError(
            "A backtest needs --config, the settings file of a training; to evaluate a given run, use "
            "`ml-pipeline evaluate RUN`."
        )
    run, notice = _run_of(file)
    return EvaluationStart(config=EvaluationConfig(checkpoint=run, **flags), changes=changes, notice=notice)


def _run_of(file: Path) -> tuple[Path, str | None]:
    """The run of a settings file, or a model version, and how the run was chosen."""
    version = _version_of(file)
    settings = read_train_settings(file if version is None else version / SETTINGS_FILE)
    if settings.get("env_id") is not None:
        raise UserError(
            f"{file} is for {settings['env_id']}, but a backtest is for trading; evaluate its run with "
            "`ml-pipeline evaluate RUN`."
        )
    if version is not None:
        return version, None
    run, started = newest_run_of(file)
    flags = started.shown_flags()
    further = f"with the further flags {flags}" if flags else "without further flags"
    return run, f"The newest run of {file} is {shown_path(run)}, trained {further}."


def _version_of(named: Path) -> Path | None:
    """The version of a deployed model, from its folder or the settings file in it."""
    path = resolved(named.expanduser())
    folder = path.parent if path.name == SETTINGS_FILE else path
    return folder if is_version_folder(folder) else None


Render = Literal["human"]


@dataclass(frozen=True, kw_only=True)
class EnjoyConfig:
    """The policy to show, how many episodes, and the recording.

    Raises UserError if a value is out of range, or two of them exclude each other.
    """

    run: tyro.conf.Positional[Path]
    """Run folder, whose best policy is used, or a checkpoint, such as checkpoints/RUN/latest.pt."""

    episodes: int | None = None
    """Number of episodes; none: 3, or, for trading, one pass through the test split."""

    video: Path | None = None
    """File to record the episodes to: .mp4 (needs the extra video) or .gif."""

    seed: int | None = None
    """Seed of the first episode; each later episode has the next seed. none: the same episodes as in the run's
    evaluations."""

    stochastic: bool = False
    """Draw actions at random from the policy's distribution, as in training; otherwise take the most probable
    action."""

    render: Render | None = None
    """Show the episodes in a window (human); none: no window."""

    def __post_init__(self) -> None:
        if self.episodes is not None:
            check_count("episodes", self.episodes)
        if self.seed is not None:
            check_count("seed", self.seed, minimum=0)
        if self.render is not None:
            check_choice("render", self.render, get_args(Render))
        if self.render is not None and self.video is not None:
            raise UserError("--render shows the frames and --video records them; use one of them.")


@dataclass(frozen=True, kw_only=True)
class EnjoyCommandLine:
    """What the flags fill."""

    enjoy: EnjoyConfig = field()


def parse_enjoy(argv: Sequence[str], *, prog: str, description: str = "") -> EnjoyConfig:
    """Read the command line. Raises UserError if a setting is invalid; exits with code 0 after --help."""
    return parse_settings(argv, EnjoyCommandLine, prog=prog, description=description).enjoy


Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The policy to export, and the file format.

    Raises UserError if a value is none of its choices.
    """

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, whose best policy is used, or a checkpoint, such as checkpoints/RUN/latest.pt."""

    format: Format = "onnx"
    """File format: a model for onnxruntime (onnx; needs the extra onnx), or a torch.export program (torch)."""

    output: Path | None = None
    """File to write; none: the checkpoint's path with the ending .onnx or .pt2."""

    def __post_init__(self) -> None:
        check_choice("format", self.format, get_args(Format))

    @property
    def path(self) -> Path:
        """The file to write."""
        return self.output or self.checkpoint.with_suffix(SUFFIXES[self.format])


@dataclass(frozen=True, kw_only=True)
class ExportCommandLine:
    """What the flags fill."""

    export: ExportConfig = field()


def parse_export(argv: Sequence[str], *, prog: str, description: str = "") -> ExportConfig:
    """Read the command line. Raises UserError if a setting is invalid; exits with code 0 after --help."""
    return parse_settings(argv, ExportCommandLine, prog=prog, description=description).export


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """The model of Stable-Baselines3 to import, and its environment."""

    model: tyro.conf.Positional[Path]
    """File of the model, as PPO.save wrote it, such as model.zip."""

    vecnormalize: Path | None = None
    """File that VecNormalize.save wrote, if the model was trained with it; none: observations and rewards are used as
    they are."""

    env_id: str | None = None
    """Id of its environment, such as CartPole-v1 or my_project:Grid-v0; none: the run can be loaded and used by
    --init-from, but not evaluated or resumed."""

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as JSON, such as '{"size": 8}'."""

    wrappers: tuple[str, ...] = ()
    """Wrappers of the environment, as module:class, the first one innermost."""

    frame_stack: int | None = None
    """Number of frames in an observation; none: 1, or 4 with --atari."""

    atari: bool = False
    """Preprocess Atari frames as Stable-Baselines3's AtariWrapper does."""

    checkpoint_dir: Path | None = None
    """Folder of the new run; none: a new folder in checkpoints/."""

    @property
    def of_environment(self) -> dict[str, Any]:
        """The settings of the environment; empty without --env-id."""
        if self.env_id is None:
            return {}
        names = ("env_id", "env_kwargs", "wrappers", "frame_stack", "atari")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class ImportCommandLine:
    """What the flags fill."""

    model: ImportConfig = field()


def parse_import(argv: Sequence[str], *, prog: str, description: str = "") -> ImportConfig:
    """Read the command line. Raises UserError if a setting is invalid; exits with code 0 after --help."""
    return parse_settings(argv, ImportCommandLine, prog=prog, description=description).model
