"""Load a policy to trade, and its settings, from a checkpoint, a run folder or models/NAME/current."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.spaces import only_row
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.deployed import is_version_folder, warned_of
from ml_pipeline.runs.trained.restore import find_policy, load_run, restore_policy
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.configured_market import calendar_of
from ml_pipeline.trading.envs.actions import action_space
from ml_pipeline.trading.envs.fast import observation_space
from ml_pipeline.trading.features.scaling import FeatureRanges, FeatureScaler
from ml_pipeline.trading.market.timeframes import Calendar
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.trained_state import EACH_SYMBOL_KEY, TrainedState, read_state, under_conditions

if TYPE_CHECKING:
    from ml_pipeline.runs.sb3.policy import SB3Policy


Observation = NDArray[np.float32]


class ImpossibleAction(UserError):
    """The policy's action cannot be executed: it is NaN, an invalid choice, or beyond a limit."""


class DeployedActing:
    """Acts bar by bar, bit for bit as `Policy.act` does; a recurrent policy keeps its state until `begin_episode`.

    It takes the deterministic action, as in an evaluation, and never acts on NaN. A network whose outputs are NaN still
    has a largest output, on which a discrete policy would go short, so the outputs are checked as well as the action.
    """

    def __init__(self, policy: "Policy | SB3Policy") -> None:
        self.policy = policy
        self.begin_episode()

    def begin_episode(self) -> None:
        """Reset the recurrent state."""
        self._memory = self.policy.new_memory(1) if isinstance(self.policy, Policy) else None

    def __call__(self, observation: Observation) -> Any:
        """The action for one observation. If it is NaN, raises ImpossibleAction and keeps the previous state."""
        if not np.isfinite(observation).all():
            raise ImpossibleAction("The observation is not finite; check the bars and the account that it comes from.")
        policy = self.policy
        action = self._of_own(policy, observation) if isinstance(policy, Policy) else self._of_sb3(policy, observation)
        if not np.isfinite(np.asarray(action, dtype=np.float64)).all():
            raise ImpossibleAction(f"The policy returned {action}, which is not finite.")
        return action

    def state(self) -> list[float] | None:
        """The recurrent state as plain numbers; None if the policy has none."""
        return None if self._memory is None else [float(value) for value in self._memory.state[0]]

    def set_state(self, state: list[float] | None) -> None:
        """Restore a `state`. Raises UserError if it has another size."""
        self.begin_episode()
        if (state is None) != (self._memory is None) or (
            state is not None and self._memory is not None and len(state) != self._memory.state.shape[1]
        ):
            raise UserError("The state belongs to a policy with another recurrent state; start with that model.")
        if state is not None and self._memory is not None:
            self._memory.state = np.array([state], dtype=np.float32)

    def _of_own(self, policy: Policy, observation: Observation) -> Any:
        remembered = None if self._memory is None else self._memory.state
        parameters = policy.parameters(policy.observations.process_one(observation), self._memory)
        if np.isnan(parameters).any():
            if self._memory is not None and remembered is not None:
                self._memory.state = remembered
            raise ImpossibleAction("The policy's network returned NaN; its weights or its statistics are broken.")
        return only_row(policy.fit_actions(policy.distribution.mode(parameters)))

    def _of_sb3(self, policy: "SB3Policy", observation: Observation) -> Any:
        if broken := [name for name, weight in policy.model.policy.state_dict().items() if not weight.isfinite().all()]:
            raise ImpossibleAction(f"The policy's weights are not finite ({broken[0]}).")
        return policy.act(observation)


class _Spaces(NamedTuple):
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


@dataclass(frozen=True, eq=False)
class DeployedPolicy:
    """A policy and its settings for trading.

    checkpoint: the file; for models/NAME/current that of the version. run: every setting of the training.
    trained: the checkpoint's data about its market. rules: costs, limits and actions of the account.
    """

    checkpoint: Path
    run: TrainConfig
    trained: TrainedState
    rules: TradingRules
    act: DeployedActing

    @property
    def config(self) -> TradingConfig:
        """The settings that `evaluate --data` uses on these data, with the observations and actions of training."""
        return self.trained.config

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in the settings, or those of the training; `symbols_on` chooses from those in the data."""
        return self.config.symbols or self.trained.symbols

    @property
    def scaler(self) -> FeatureScaler:
        return self.trained.scaler

    @property
    def window(self) -> int:
        """The number of bars in an observation."""
        return self.config.window

    @property
    def clip(self) -> float:
        """The largest absolute value in an observation, including the weights of positions."""
        return self.scaler.clip

    @property
    def ranges(self) -> FeatureRanges:
        """The range of each feature in training; for an older checkpoint, the range that its scaler does not clip."""
        return self.trained.ranges or FeatureRanges.of_scaler(self.scaler)

    @property
    def name(self) -> str:
        """The name of the deployed model, or of the run folder."""
        return model_name(self.checkpoint)

    @property
    def version(self) -> str | None:
        """The version of a deployed model, such as v3; None for any other checkpoint."""
        folder = self.checkpoint.absolute().parent
        return folder.name if is_version_folder(folder) else None

    def symbols_on(self, available: Sequence[str]) -> tuple[str, ...]:
        """The symbols of the data to trade, in order. Raises UserError as `evaluate --data` does."""
        return self.trained.symbols_on(available)

    def notices_on(self, symbols: Sequence[str]) -> tuple[str, ...]:
        """Warnings about features that its promotion recorded, and a notice if it trades other symbols than in
        training."""
        warned = warned_of(self.checkpoint.absolute().parent).sentences()
        if {*self.trained.symbols} == {*symbols}:
            return warned
        trained, traded = (in_one_line(", ".join(each)) for each in (self.trained.symbols, symbols))
        return (*warned, f"the policy was trained on {trained}, and trades {traded} here")

    def calendar(self, inferred: Calendar) -> Calendar:
        """The calendar of the data, with the bars per year from the settings, if set."""
        return calendar_of(inferred, self.config)


def model_name(checkpoint: Path) -> str:
    """The name of the deployed model of which the checkpoint is a version, or of its run folder."""
    folder = checkpoint.absolute().parent
    return folder.parent.name if is_version_folder(folder) else folder.name


def load_deployed_policy(path: str | Path, changes: Mapping[str, Any] | None = None) -> DeployedPolicy:
    """Load the best policy of a run folder, the policy of a checkpoint, or that of a deployed model.

    changes: market conditions that differ from training, as the flags of `evaluate`.
    Raises UserError if there is no checkpoint, or it cannot trade one account.
    """
    checkpoint = find_policy(path)
    run, saved = load_run(checkpoint)
    if run.run.env_id is not None:
        raise UserError(f"{checkpoint} is a policy for {run.run.env_id}, not for a market; name one that trades.")
    if EACH_SYMBOL_KEY in saved["task"]:
        raise UserError(
            f"{checkpoint} was trained with per_symbol, one account for each symbol, but paper trading has one account "
            "for all; train without per_symbol, or trade a policy of one symbol."
        )
    trained = read_state(saved["task"], under_conditions(run.trading, changes or {}, on_other_data=True))
    n_assets = len(trained.symbols)
    rules = trained.config.rules(n_assets)
    observed = observation_space(
        len(trained.scaler.mean), n_assets, window=trained.config.window, clip=trained.scaler.clip
    )
    policy = restore_policy(run, _Spaces(observed, action_space(rules, n_assets)), saved, checkpoint)
    return DeployedPolicy(checkpoint, run, trained, rules, DeployedActing(policy))
