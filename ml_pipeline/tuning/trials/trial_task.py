"""The task of a trial's run: as the task that it wraps, but its report is of the validation split alone."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.runs.tasks import Task
from ml_pipeline.trading.evaluation.baselines import EquityPath
from ml_pipeline.trading.features.leaks import FeatureWarning
from ml_pipeline.trading.symbols_task import SymbolsTask
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.study_files import RETURNS_FILE
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, returns_of_paths


class TrialTask:
    """Never evaluates on the test split: that is opened once, for the winner of a study."""

    def __init__(self, task: Task, *, is_resumed: bool) -> None:
        """is_resumed: whether the run may have scored its best policy before, with another object of this class."""
        self.name = task.name
        self.returns: ValidationReturns | None = None
        """What the best policy earned on the validation split, once the run has finished; None without a market."""
        self._task = task
        self._market_task = task if isinstance(task, TradingTask | SymbolsTask) else None
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
        """The task's score. The pass of the best policy is kept, which is the one that the run keeps, too."""
        if self._market_task is None:
            return self._task.score(act)
        paths = self._market_task.scored_paths(act)
        score = self._market_task.score_of(paths)
        if score > self._best or self._best == -math.inf:
            self._best, self._best_paths = score, paths
        return score

    def report(self, act: Callable[[Any], Any], folder: Path) -> str:
        """Write the returns of the validation split, bar by bar, where there are any: the study is judged by them."""
        task = self._market_task
        if task is None:
            return "The trial has finished."
        paths = task.scored_paths(act) if self._is_resumed or not self._best_paths else self._best_paths
        self.returns = returns_of_paths(paths)
        self.returns.write(folder / RETURNS_FILE)
        return f"The trial has finished; its returns on the validation split are in {RETURNS_FILE}."

    def state(self) -> dict[str, Any]:
        return self._task.state()
