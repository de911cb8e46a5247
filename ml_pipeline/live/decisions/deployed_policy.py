"""From a checkpoint, a run folder or models/NAME/current to a policy that can trade, and the settings it trades by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.live.decisions.acting import DeployedActing
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.deployed import is_version_folder, warned_of
from ml_pipeline.runs.trained.restore import find_policy, load_run, restore_policy
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.actions import action_space
from ml_pipeline.trading.envs.fast import observation_space
from ml_pipeline.trading.features.ranges import FeatureRanges
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.calendar import Calendar
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import calendar_of
from ml_pipeline.trading.trained_state import EACH_SYMBOL_KEY, TrainedState, read_state, under_conditions


class _Spaces(NamedTuple):
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


@dataclass(frozen=True, eq=False)
class DeployedPolicy:
    """A policy and what it trades by.

    checkpoint: the file; through models/NAME/current it is that of the version. run: every setting of its training.
    trained: what the checkpoint holds of its market.
    rules: the costs, limits and actions of its account.
    """

    checkpoint: Path
    run: TrainConfig
    trained: TrainedState
    rules: TradingRules
    act: DeployedActing

    @property
    def config(self) -> TradingConfig:
        """The settings of `evaluate --data` on the same data: observations and actions as trained."""
        return self.trained.config

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that the settings name, or those it was trained on; `symbols_on` chooses among those of data."""
        return self.config.symbols or self.trained.symbols

    @property
    def scaler(self) -> FeatureScaler:
        return self.trained.scaler

    @property
    def window(self) -> int:
        """The number of bars whose features an observation holds."""
        return self.config.window

    @property
    def clip(self) -> float:
        """The largest absolute number in an observation, weights of positions included."""
        return self.scaler.clip

    @property
    def ranges(self) -> FeatureRanges:
        """The range of each feature in training; of an older checkpoint, what its scaler does not clip."""
        return self.trained.ranges or FeatureRanges.of_scaler(self.scaler)

    @property
    def name(self) -> str:
        """The model's name: that of the deployed model, or of the run folder."""
        return model_name(self.checkpoint)

    @property
    def version(self) -> str | None:
        """The version of a deployed model, such as v3; None for any other checkpoint."""
        folder = self.checkpoint.absolute().parent
        return folder.name if is_version_folder(folder) else None

    def symbols_on(self, available: Sequence[str]) -> tuple[str, ...]:
        """The symbols of the data that it trades, in order. Raises UserError as `evaluate --data` does."""
        return self.trained.symbols_on(available)

    def notices_on(self, symbols: Sequence[str]) -> tuple[str, ...]:
        """Warnings about its features that its promotion kept, and a sentence if these symbols, which it trades, are
        not those that it was trained on."""
        warned = warned_of(self.checkpoint.absolute().parent).sentences()
        if {*self.trained.symbols} == {*symbols}:
            return warned
        trained, traded = (in_one_line(", ".join(each)) for each in (self.trained.symbols, symbols))
        return (*warned, f"the policy was trained on {trained}, and trades {traded} here")

    def calendar(self, inferred: Calendar) -> Calendar:
        """The calendar of the data, with the bars per year that the settings give, if they do."""
        return calendar_of(inferred, self.config)


def model_name(checkpoint: Path) -> str:
    """The name of the deployed model that a checkpoint is a version of, or of its run folder."""
    folder = checkpoint.absolute().parent
    return folder.parent.name if is_version_folder(folder) else folder.name


def load_deployed_policy(path: str | Path, changes: Mapping[str, Any] | None = None) -> DeployedPolicy:
    """The best policy of a run folder, the policy of a checkpoint, or that of a deployed model.

    changes: market conditions other than in training, as the flags of `evaluate`.
    Raises UserError where there is no checkpoint, or it cannot trade one account.
    """
    checkpoint = find_policy(path)
    run, saved = load_run(checkpoint)
    if run.run.env_id is not None:
        raise UserError(f"{checkpoint} is a policy of {run.run.env_id}, which is no market; name one that trades.")
    if EACH_SYMBOL_KEY in saved["task"]:
        raise UserError(
            f"{checkpoint} was trained with per_symbol, an account for each symbol, but here one account trades them "
            "all; train without per_symbol, or trade a policy of one symbol."
        )
    trained = read_state(saved["task"], under_conditions(run.trading, changes or {}, on_other_data=True))
    n_assets = len(trained.symbols)
    rules = trained.config.rules(n_assets)
    observed = observation_space(
        len(trained.scaler.mean), n_assets, window=trained.config.window, clip=trained.scaler.clip
    )
    policy = restore_policy(run, _Spaces(observed, action_space(rules, n_assets)), saved, checkpoint)
    return DeployedPolicy(checkpoint, run, trained, rules, DeployedActing(policy))
