"""What a run needs of a trainer, whatever algorithm it is; hooks that are called between iterations, and early ends."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

Result = TypeVar("Result")


class TrainedPolicy(Protocol):
    """What a trainer trains."""

    @property
    def act(self) -> Callable[[Any], Any]:
        """The action for one observation; its `begin_episode`, where it has one, is called before each episode."""

    def acting_threads(self) -> AbstractContextManager[None]:
        """For an evaluation; within it, acting is no slower and has the same bits for any number of cores."""

    def state_dict(self) -> dict[str, Any]:
        """All that acting needs, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved policy."""


class Statistics(Protocol):
    """What a trainer reports of one iteration."""

    @property
    def iteration(self) -> int:
        """From 1."""

    @property
    def global_step(self) -> int:
        """Transitions so far, over all environments."""

    @property
    def mean_return_100(self) -> float:
        """Mean return of the last 100 training episodes; NaN before the first has ended."""

    def metrics(self) -> dict[str, float]:
        """All figures, under the names that a metrics file uses."""


@runtime_checkable
class Trainer(Protocol):
    """Trains a policy iteration by iteration, can be stopped, saved and resumed.

    `PPOTrainer` is one. Hooks, early stopping and runs use what stands here and nothing else of a trainer.
    """

    @property
    def policy(self) -> TrainedPolicy:
        """What is trained; it can act at any time."""

    @property
    def iteration(self) -> int:
        """Iterations that are done."""

    @property
    def global_step(self) -> int:
        """Transitions so far, over all environments."""

    @property
    def total_timesteps(self) -> int:
        """The `global_step` at which training is finished."""

    @property
    def total_iterations(self) -> int:
        """The `iteration` at which training is finished, as far as is known by now; for display."""

    @property
    def finished(self) -> bool:
        """Whether `total_timesteps` are done."""

    def train(
        self,
        *,
        evaluate: "Every[Mapping[str, float]] | None" = None,
        save: "Every[None] | None" = None,
        after_iteration: "Hook | None" = None,
        progress: bool = True,
    ) -> TrainedPolicy:
        """Train until `finished` or `request_stop`. progress: show a bar on a terminal.

        After each iteration come `after_iteration`, then `evaluate`, then the report to the sink, then `save`.
        """

    def request_stop(self) -> None:
        """Let `train` return soon; may be called from a hook, another thread or a signal handler."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume, readable with torch's `weights_only` but for states that are pickles: a list
        "environments" may hold a `PickledState`, which a run keeps in a file of its own."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""

    def close(self) -> None:
        """Release what the trainer made; may be called twice."""


@runtime_checkable
class ChangesEnvs(Protocol):
    """A trainer that can go on in more or fewer environments."""

    @property
    def mid_rollout(self) -> bool:
        """Whether it stands in the middle of a rollout, where environments cannot be replaced."""

    def replace_envs(self, envs: Any) -> str:
        """Train in these environments from the next rollout on, in the episodes that are under way; return why not in
        these, or ""."""


class Every(NamedTuple, Generic[Result]):
    """Something that `train` does after every `interval` iterations, and after the last."""

    interval: int
    action: Callable[[Trainer], Result]

    def due(self, trainer: Trainer) -> bool:
        return is_due(trainer, self.interval)


def is_due(trainer: Trainer, interval: int) -> bool:
    """Whether something is due after this iteration that happens after every `interval` of them, and after the last."""
    return trainer.iteration % interval == 0 or trainer.finished


Hook = Callable[[Trainer, Statistics], Mapping[str, float] | None]
"""Called after each iteration; what it returns is written with the metrics of the iteration."""


class StopAtReturn:
    """Stops once the mean return of the last 100 training episodes reaches `target`."""

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, trainer: Trainer, statistics: Statistics) -> None:
        if statistics.mean_return_100 >= self._target:
            trainer.request_stop()


class StopOnPlateau:
    """Stops once the mean return of the last 100 training episodes has not risen for `patience` iterations.

    A rise exceeds the best so far by more than `min_rise`. Save `state_dict` with the trainer's: a resumed run then
    stops in the same iteration as an uninterrupted one.
    """

    def __init__(self, patience: int, *, min_rise: float = 0.0) -> None:
        self._patience = patience
        self._min_rise = min_rise
        self._best = -math.inf
        self._since = 0

    def __call__(self, trainer: Trainer, statistics: Statistics) -> None:
        if statistics.mean_return_100 > self._best + self._min_rise:
            self._best, self._since = statistics.mean_return_100, 0
        elif not math.isnan(statistics.mean_return_100):  # which it is before the first episode has ended
            self._since += 1
        if self._since >= self._patience:
            trainer.request_stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._since = state["best"], state["since"]
