"""Changes of a session's model: which one it starts with, how another is loaded, and which costs and limits remain."""

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
    """Returns a function that loads the folder of a version and returns its runner for a session.

    Costs and limits remain those of the session; observations and actions are those of the new model.
    policy: the session's current one. changes: the market conditions that it was started with. The returned function
    raises UserError if a version cannot trade in this session.
    """
    kept = {**changes, **costs_and_limits_of(policy)}

    def load(folder: Path) -> PolicyRunner:
        policy = load_deployed_policy(folder, kept)
        symbols = feed.symbols
        if len(policy.trained.symbols) != len(symbols):
            raise UserError(
                f"It was trained on {len(policy.trained.symbols)} symbols, but the session trades {len(symbols)} "
                f"({', '.join(symbols[:5])}); deploy a version with the same number."
            )
        return PolicyRunner(policy, symbols, feed.timing, policy.calendar(feed.calendar))

    return load


def costs_and_limits_of(policy: DeployedPolicy) -> dict[str, Any]:
    """The costs and limits of a policy, by the names of their settings."""
    return {each.name: getattr(policy.config, each.name) for each in fields(CostsAndLimits)}


def model_to_begin_with(config: RetrainConfig, *, named: Path, folder: Path, traded_last: Path | None) -> Path:
    """The model that a session starts with: the one that traded last, or the named one.

    A restarted session continues with the version that traded last, and takes over a newer one between two bars as
    usual. For a fixed model, versions that the session has deployed in its own folder take precedence.
    named: the model as the user named it. folder: of the session. traded_last: a checkpoint; None before the first bar.
    Raises UserError if the named model does not exist.
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
    """What a session keeps from earlier starts.

    traded_last: the checkpoint that decided last; None before the first start. costs: costs and limits of the first
    start, by the names of their settings; they remain when the model changes.
    """

    traded_last: Path | None = None
    costs: Mapping[str, Any] = MappingProxyType({})


def earlier_starts(folder: Path) -> EarlierStarts:
    """The earlier starts of the session in this folder. Raises UserError if its journal cannot be read."""
    path = folder / JOURNAL_FILE
    if not path.is_file():
        return EarlierStarts()
    with closing(Journal(path, durable=False)) as journal:
        models = journal.models()
        costs = json.loads(journal.meta(_COSTS) or "{}")
    return EarlierStarts(Path(models[-1].path) if models else None, costs)


def keep_costs(journal: Journal, policy: DeployedPolicy) -> None:
    """Record the costs and limits at the first start of a session; later calls do nothing."""
    if journal.meta(_COSTS) is None:
        with journal.transaction():
            journal.set_meta({_COSTS: json.dumps(costs_and_limits_of(policy))})
