"""`TrialTask`, a trial's task, which reports only on the validation split, and `TaskSource`, which makes tasks.

The market is loaded once per process, and everything that trials share is prepared once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.models.rl.core.arguments import KnownCost
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.tasks import Task, make_task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.configured_market import load_markets
from ml_pipeline.trading.evaluation.baselines import EquityPath
from ml_pipeline.trading.features.leaks import FeatureWarning
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets
from ml_pipeline.tuning.study_files import RETURNS_FILE
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, returns_of_paths


class TrialTask:
    """A task that never evaluates on the test split, which is opened once, for the winner of a study."""

    def __init__(self, task: Task, *, is_resumed: bool) -> None:
        """is_resumed: whether the run may have scored its best policy before, with another object of this class."""
        self.name = task.name
        self.returns: ValidationReturns | None = None
        """The best policy's returns on the validation split, once the run has finished; None without a market."""
        self._task = task
        self._market_task = task if isinstance(task, TradingTask) else None
        self._is_resumed = is_resumed
        self._best = -math.inf
        self._best_paths: Sequence[EquityPath] = ()

    @property
    def notices(self) -> tuple[str, ...]:
        return self._task.notices

    @property
    def feature_warnings(self) -> tuple[FeatureWarning, ...]:
        return () if self._market_task is None else self._market_task.feature_warnings

    def train_env_fns(self, n: int) -> Sequence[Callable[[], gymnasium.Env]]:
        return self._task.train_env_fns(n)

    def batched_train_env(self, n: int, *, device: str | None = None) -> VectorEnv:
        return self._task.batched_train_env(n, device=device)

    def score(self, act: Callable[[Any], Any]) -> float:
        """The task's score. Keeps the equity paths of the best policy, the same one that the run keeps."""
        if self._market_task is None:
            return self._task.score(act)
        paths = self._market_task.scored_paths(act)
        score = self._market_task.score_of(paths)
        if score > self._best or self._best == -math.inf:
            self._best, self._best_paths = score, paths
        return score

    def report(self, act: Callable[[Any], Any], folder: Path) -> str:
        """Write the returns of the validation split, bar by bar, if there are any; the study is judged by them."""
        task = self._market_task
        if task is None:
            return "The trial has finished."
        paths = task.scored_paths(act) if self._is_resumed or not self._best_paths else self._best_paths
        self.returns = returns_of_paths(paths)
        self.returns.write(folder / RETURNS_FILE)
        return f"The trial has finished; its returns on the validation split are in {RETURNS_FILE}."

    def state(self) -> dict[str, Any]:
        return self._task.state()


Made = TypeVar("Made")

_MOST_KEPT = 4  # tasks with different features: each needs memory for its market's features
_ANY_FRACTION = 0.25  # a placeholder for tasks that differ only in their splits


class TaskSource:
    """Makes tasks with caches: one task serves several seeds and folds, and one market several tasks."""

    def __init__(self) -> None:
        self._costs: dict[str, KnownCost] = {}
        self._gym_tasks: dict[str, GymTask] = {}
        self._markets: dict[str, dict[str, MarketData]] = {}
        self._trading_tasks: dict[str, TradingTask] = {}
        self._split_tasks: dict[str, TradingTask] = {}

    def task(self, config: TrainConfig) -> GymTask | TradingTask:
        """The task of `make_task`. Raises UserError as it does."""
        run = config.run
        if run.env_id is None:
            return self._split(config.trading).with_seed(run.seed)
        # All settings that a task depends on; the result of the environment's first reset does not depend on the seed.
        kind = (run.env_id, run.env_kwargs, run.atari, run.wrappers, run.frame_stack)
        key = repr((*kind, run.eval_episodes, run.step_timeout_s))

        def make() -> GymTask:
            task = make_task(config)
            assert isinstance(task, GymTask)
            return task

        return _kept(self._gym_tasks, key, make).with_seed(run.seed)

    def step_cost(self, config: TrainConfig) -> KnownCost:
        """The cost of a step in the environments of such tasks, once a run has measured it."""
        run = config.run
        kind = (run.env_id, run.env_kwargs, run.atari, run.wrappers, run.frame_stack)
        return _kept(self._costs, repr(kind), KnownCost)

    def fractions_as_of(self, base: TradingConfig, config: TradingConfig) -> dict[str, float]:
        """The fractions that give a task of `config` the splits of a task of `base`; empty if they are already equal.

        The first usable bar depends on features and window, and splits are fractions of the bars after it. Otherwise
        the validation split of one trial would reach into the test split of another. If symbols have unequal numbers
        of bars, no validation split reaches further than in `base`, and some end a few bars earlier.
        Raises UserError as `task`.
        """
        whole, of_base = self._unsplit(config), self._unsplit(base)
        pairs = [(account, of_base.accounts[symbol]) for symbol, account in whole.accounts.items()]
        if all(account.first_bar == its_base.first_bar for account, its_base in pairs):
            return {}
        train, both = 1.0, 1.0
        for account, its_base in pairs:
            splits = its_base.splits_by(train=base.train_fraction, validation=base.validation_fraction)
            usable = account.market.n_bars - account.first_bar
            train = min(train, (splits["train"].stop - account.first_bar) / usable)
            both = min(both, (splits["validation"].stop - account.first_bar) / usable)
        return {"train_fraction": train, "validation_fraction": both - train}

    def _unsplit(self, config: TradingConfig) -> TradingTask:
        """A task of these settings whose own splits are not used."""
        known = replace(config, train_fraction=_ANY_FRACTION, validation_fraction=_ANY_FRACTION)
        return _kept(self._trading_tasks, repr(known), lambda: self._whole(config))

    def _split(self, config: TradingConfig) -> TradingTask:
        def make() -> TradingTask:
            whole = self._unsplit(config)
            _ = whole.notices  # checks for leaks, once for all copies of the task
            return whole.with_fractions(train=config.train_fraction, validation=config.validation_fraction)

        return _kept(self._split_tasks, repr(config), make)

    def _whole(self, config: TradingConfig) -> TradingTask:
        """The task of these settings, on the cached market."""
        read = (config.bar_time, config.form(), config.dialect(), config.faults(), config.periods_per_year)
        source = (config.data, config.symbols, config.per_symbol, *read)
        markets = _kept(self._markets, repr(source), lambda: load_markets(config))
        return TradingTask(config, accounts=traded_markets(config, markets))


def _kept(kept: dict[str, Made], key: str, make: Callable[[], Made]) -> Made:
    """The cached value for this key, made if missing; only the last used values are kept."""
    made = kept.pop(key, None)
    if made is None:
        made = make()
    kept[key] = made
    while len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
    return made
