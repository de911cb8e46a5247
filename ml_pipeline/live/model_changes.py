"""A session's model as it changes: what it begins with, how another is loaded, and what stays whatever trades."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy, load_deployed_policy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.model_updates import model_written_to
from ml_pipeline.live.session_files import JOURNAL_FILE
from ml_pipeline.runs.trained.deployed import CURRENT, current_number, is_version_folder
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.trading.accounts.rules import CostsAndLimits

_COSTS = "costs_and_limits"  # in the journal


def runner_loader(policy: DeployedPolicy, feed: Feed, changes: Mapping[str, Any]) -> Callable[[Path], PolicyRunner]:
    """What makes, of the folder of a version, the runner that decides by it in a session.

    Costs and limits stay those of the session; what is observed, and what an action is, are the new model's.
    policy: what the session trades. changes: the market conditions that it was started with. The function raises
    UserError if a version cannot trade there.
    """
    kept = {**changes, **costs_and_limits_of(policy)}

    def load(folder: Path) -> PolicyRunner:
        policy = load_deployed_policy(folder, kept)
        symbols = feed.symbols
        if len(policy.trained.symbols) != len(symbols):
            raise UserError(
                f"It was trained on {len(policy.trained.symbols)} symbols, but the session trades {len(symbols)} "
                f"({', '.join(symbols[:5])}); deploy one of as many."
            )
        return PolicyRunner(policy, symbols, feed.timing, policy.calendar(feed.calendar))

    return load


def costs_and_limits_of(policy: DeployedPolicy) -> dict[str, Any]:
    """The costs and limits that a policy trades by, by the names of their settings."""
    return {each.name: getattr(policy.config, each.name) for each in fields(CostsAndLimits)}


def model_to_begin_with(config: RetrainConfig, *, named: Path, folder: Path, traded_last: Path | None) -> Path:
    """What a session trades from its start on: the model that traded last, or the one that was named.

    A session that is started again goes on with the version that traded, and takes what was deployed meanwhile between
    two bars, as ever. Of a fixed model, the versions that the session has deployed in its own folder come first.
    named: the model as the user named it. folder: of the session. traded_last: a checkpoint; None before the first bar.
    Raises UserError where the named model is not there.
    """
    checkpoint = find_policy(named)
    model = model_written_to(checkpoint, config.retrain_models_dir, folder=folder, named=named)
    if traded_last is not None and traded_last.is_file():
        of_version = traded_last.resolve().parent
        if of_version.parent == model.resolve() and is_version_folder(of_version):
            return traded_last
        if traded_last.resolve() == checkpoint.resolve():
            return named
    if model.resolve() == checkpoint.resolve().parent.parent:
        return named
    try:
        number = current_number(model)
    except UserError:
        return named
    return named if number is None else model / CURRENT


class EarlierStarts(NamedTuple):
    """What a session keeps from its first start on.

    traded_last: the checkpoint that decided last; None before the first start. costs: costs and limits, by the names of
    their settings, whatever model came to trade since.
    """

    traded_last: Path | None = None
    costs: Mapping[str, Any] = MappingProxyType({})


def earlier_starts(folder: Path) -> EarlierStarts:
    """Of the session in this folder. Raises UserError where its journal cannot be read."""
    path = folder / JOURNAL_FILE
    if not path.is_file():
        return EarlierStarts()
    with closing(Journal(path, durable=False)) as journal:
        models = journal.models()
        costs = json.loads(journal.meta(_COSTS) or "{}")
    return EarlierStarts(Path(models[-1].path) if models else None, costs)


def keep_costs(journal: Journal, policy: DeployedPolicy) -> None:
    """Write down the costs and limits that the session begins with; later on, nothing is written."""
    if journal.meta(_COSTS) is None:
        with journal.transaction():
            journal.set_meta({_COSTS: json.dumps(costs_and_limits_of(policy))})
