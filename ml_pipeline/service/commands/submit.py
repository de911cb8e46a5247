"""Command: queue one run per seed and symbol in the service; print one id per line.

ml-pipeline submit --config settings.yaml --seeds 0 1 2 --symbols EURUSD GBPUSD --data-dir data/forex
ml-pipeline submit --env-id CartPole-v1 --n-envs 8 --total-timesteps 100000 --priority 1 --restarts 2
"""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.algorithms import OWN, check_actions
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import read_flags
from ml_pipeline.models.rl.preprocessing.spaces import space_name
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.environments.ids import check_registered, id_error, import_module_of, keyword_error
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.settings_file import StartedWith
from ml_pipeline.runs.train_command_line import (
    SettingsFrom,
    check_seeds,
    given_settings,
    reject_irrelevant_settings,
)
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config
from ml_pipeline.service.channel import ask_service
from ml_pipeline.service.submission import flat_settings, new_run_id, submitted_config
from ml_pipeline.trading.configured_market import load_markets
from ml_pipeline.trading.envs.actions import action_space
from ml_pipeline.trading.market.symbol_files import find_symbol_files
from ml_pipeline.trading.settings import TradingConfig

PROG = "submit"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Submit the runs; return 0, or exit with code 2 and an error message if a setting is invalid. All settings are
    checked before the first run is queued."""
    with entry(prog):
        submission = parse_submission(argv, prog=prog, description=COMMANDS["submit"].sentence)
        submit = submission.submit
        root = root_of_runs(submit.root)
        configs = [submitted_config(config) for config in submission.configs]
        for config in {repr(_without_seed(config)): config for config in submission.configs}.values():
            check_task(config)
        for config, started in zip(configs, submission.started_with, strict=True):
            request = {
                "do": "submit",
                "settings": flat_settings(config),
                "run_id": new_run_id(config),
                "priority": submit.priority,
                "restarts": submit.restarts,
                "folder_of_work": str(Path.cwd()),
            }
            id = ask_service(root, request)
            print(id, flush=True)
            with suppress(UserError):  # the folder may already be deleted
                started.record(root / id)
    return 0


def _without_seed(config: TrainConfig) -> TrainConfig:
    return replace(config, run=replace(config.run, seed=0))


@dataclass(frozen=True)
class SubmitConfig(SettingsFrom):
    """The runs to submit."""

    seeds: tuple[int, ...] = ()
    """Submit one run per seed; none: one run, with --seed."""

    data_dir: Path | None = None
    """Folder of market data with one file per symbol. One run per symbol is submitted, or, with --per-symbol, one run
    for all symbols."""

    priority: int = 0
    """Priority of the runs in the queue, such as -1 or 10; runs with a higher priority start first."""

    restarts: int = 0
    """How often a run restarts from its checkpoint after a crash; 0: never."""

    root: Path | None = None
    """The service's folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine(TrainConfig):
    """The flags of the command."""

    submit: SubmitConfig = field(default_factory=SubmitConfig)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One call of submit. configs, started_with: one entry per run; submit: flags for all runs."""

    configs: tuple[TrainConfig, ...]
    started_with: tuple[StartedWith, ...]
    submit: SubmitConfig


def parse_submission(argv: Sequence[str], *, prog: str, description: str) -> Submission:
    """The runs of a command line. Raises UserError if a setting is invalid; exits after --help."""
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    own = {name: flags.pop(name) for name in ("seeds", "data_dir", "priority", "restarts", "root") if name in flags}
    submit = SubmitConfig(**own)
    check_seeds(submit.seeds, beside={"seed": "seed" in flags})
    each_symbol = flags.get("symbols", ())
    given, started = given_settings(flags)
    if len({*each_symbol}) < len(each_symbol):
        raise UserError(f"symbols must be different, but got {' '.join(each_symbol)}.")
    seeds = [{"seed": seed} for seed in submit.seeds] or [{}]
    markets = _markets(submit.data_dir, each_symbol, given)
    configs, starts = [], []
    for market, seed in product(markets, seeds):
        settings = {**given, **market, **seed}
        configs.append(train_config(layered(settings)))
        reject_irrelevant_settings(configs[-1], settings)
        starts.append(started.with_flags(**market, **seed))
    return Submission(configs=tuple(configs), started_with=tuple(starts), submit=submit)


def _markets(data_dir: Path | None, symbols: Sequence[str], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each market: one entry per symbol or, with --per-symbol, one entry with all symbols.

    Without symbols, a single entry without changes.
    """
    if data_dir is not None and given.get("data") is not None:
        raise UserError("--data-dir and --data both name the market data; use one of them.")
    wanted = symbols or given.get("symbols") or ()
    if data_dir is None and given.get("data") is None and wanted and given.get("env_id") is None:
        raise _no_data(wanted)
    if given.get("per_symbol"):  # one policy trades all of them
        return [{} if data_dir is None else {"data": data_dir}]
    if data_dir is None:
        return [{"symbols": (symbol,)} for symbol in symbols] or [{}]
    return [own.settings for own in find_symbol_files(data_dir, wanted).values()]


def _no_data(symbols: Sequence[str]) -> UserError:
    """The error for symbols without data; it names a nearby folder with their files, if there is one."""
    here = Path()
    for folder in (here, here / "data", *sorted((here / "data").glob("*/"))):
        try:
            find_symbol_files(folder, symbols)
        except UserError:
            continue
        nearby = f"--data-dir {folder} has a file for each."
        break
    else:
        nearby = "pass --data-dir with a folder that has one file per symbol, or --data with a file of all symbols."
    return UserError(f"There is no data for {', '.join(symbols)}; {nearby}")


def check_task(config: TrainConfig) -> None:
    """Raise UserError if the data cannot be read, the environment's id is not registered, or the algorithm does not
    support its action space.

    Imports the module of an id, so call it in a process that may run the user's code. For algorithms other than PPO,
    which supports all action spaces, it makes an environment to check the actions.
    """
    run = config.run
    if run.env_id is None:
        n_assets = _n_assets(config.trading)
        space = None if run.algorithm == OWN else action_space(config.trading.rules(n_assets), n_assets)
    else:
        import_module_of(run.env_id)
        check_registered(run.env_id)
        space = None if run.algorithm == OWN else _env_actions(config)
    if space is not None:
        check_actions(run.algorithm, type(space).__name__, space_name(space))


def _n_assets(trading: TradingConfig) -> int:
    """The number of assets that the policy trades. Raises UserError, as `train` does, if their data cannot be read."""
    return len(next(iter(load_markets(trading).values())).symbols)


def _env_actions(config: TrainConfig) -> gymnasium.Space | None:
    """The action space; None if the environment's own code raises, which the run will report."""
    run = config.run
    assert run.env_id is not None
    try:
        with closing(GymEnv.of(run).make()) as made:
            return made.action_space
    except UserError:
        raise
    except Exception as error:
        if told := id_error(run.env_id, error) or keyword_error(run.env_id, error, run.env_kwargs):
            raise told from error
        return None
