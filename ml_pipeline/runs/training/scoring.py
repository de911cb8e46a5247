"""Scores the policy of a run during training, until a stop is requested, and keeps the best score so far."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_pipeline.models.rl.algorithms.trainer import Trainer
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runtime.acting import begin_episode


class Scoring:
    """Evaluates the policy when called.

    scores: of the evaluations so far, by the number of environment steps before them. best_score: the highest,
    including scores from before a resumption; None before the first. is_due: a stop cut the last evaluation short; a
    resumed run repeats it.
    """

    def __init__(
        self,
        task: Task,
        stop: StopRequest,
        say: Callable[[str], None],
        *,
        save_best: Callable[[Trainer], None],
        unit: str | None = None,
        ranks: RankContext,
    ) -> None:
        """save_best: called with the trainer if its policy sets a new best score. unit: of the score, for its
        message. ranks: the first one evaluates and sends the score to all."""
        self.scores: dict[int, float] = {}
        self.best_score: float | None = None
        self.is_due = False
        self._task = task
        self._stop = stop
        self._say = say
        self._save_best = save_best
        self._unit = "" if unit is None else f" {unit}"
        self._ranks = ranks

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """The score, as a metric. A stop request ends the evaluation before its next step; then empty."""
        score = self._ranks.first("the evaluation", lambda: self._score_of(trainer))
        if score is None:
            self.is_due = True
            return {}
        self.is_due = False
        self.scores[trainer.global_step] = score
        self._say(f"Evaluation after iteration {trainer.iteration}: {score:,.4g}{self._unit}")
        if self.best_score is None or score > self.best_score or self.best_score == -math.inf:
            self.best_score = score
            self._save_best(trainer)
        return {"eval/score": score}

    def _score_of(self, trainer: Trainer) -> float | None:
        """None if a stop cut the evaluation short."""
        try:
            with trainer.policy.acting_threads():
                return self._task.score(Stoppable(trainer.policy.act, self._stop))
        except EvaluationStopped:
            return None

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": -math.inf if self.best_score is None else self.best_score, "unscored": self.is_due}

    def load_state_dict(self, state: Mapping[str, Any], *, has_best: bool) -> None:
        """Continue where `state` was taken. has_best: the best policy's file still exists."""
        if has_best:
            self.best_score = state["best_score"]
        self.is_due = state["unscored"]


class EvaluationStopped(Exception):
    """A stop was requested during an evaluation."""


class Stoppable:
    """Acts like its policy; raises EvaluationStopped once a stop is requested."""

    def __init__(self, act: Callable[[Any], Any], stop: StopRequest) -> None:
        self._act = act
        self._stop = stop

    def begin_episode(self) -> None:
        begin_episode(self._act)

    def __call__(self, observation: Any) -> Any:
        if self._stop.requested:
            raise EvaluationStopped
        return self._act(observation)
