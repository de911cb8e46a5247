"""The task of a trial's run: as the task that it wraps, but its report is of the validation split alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.runs.tasks import Task
from ml_pipeline.trading.symbols_task import SymbolsTask
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.study_files import RETURNS_FILE
from ml_pipeline.tuning.validation_returns import ValidationReturns, measure_validation_returns


class TrialTask:
    """Never evaluates on the test split: that is opened once, for the winner of a study."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.name = task.name
        self.returns: ValidationReturns | None = None
        """What the best policy earned on the validation split, once the run has finished; None without a market."""

    @property
    def notices(self) -> tuple[str, ...]:
        return self._task.notices

    def train_env_fns(self, n: int) -> Sequence[Callable[[], gymnasium.Env]]:
        return self._task.train_env_fns(n)

    def batched_train_env(self, n: int, *, device: str | None = None) -> VectorEnv:
        return self._task.batched_train_env(n, device=device)

    def score(self, act: Callable[[Any], Any]) -> float:
        return self._task.score(act)

    def report(self, act: Callable[[Any], Any], folder: Path) -> str:
        """Keep the returns of the validation split, bar by bar, where there are any: statistics of the study are made
        of them. The score is known from training, so nothing is evaluated again."""
        if not isinstance(self._task, TradingTask | SymbolsTask):
            return "The trial has finished."
        self.returns = measure_validation_returns(self._task, act)
        self.returns.write(folder / RETURNS_FILE)
        return f"The trial has finished; its returns on the validation split are in {RETURNS_FILE}."

    def state(self) -> dict[str, Any]:
        return self._task.state()
