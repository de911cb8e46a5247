"""The interface of trainers of any algorithm."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack, runtime_checkable

from ml_pipeline.monitoring.sinks import EpisodeRecord

Result = TypeVar("Result")
Metrics = Mapping[str, float] | None


class TrainedPolicy(Protocol):
    """The interface of a policy in training."""

    @property
    def act(self) -> Callable[[Any], Any]:
        """The action for one observation. Its `begin_episode`, if it has one, is called before each episode."""

    def acting_threads(self) -> AbstractContextManager[None]:
        """Within the block, actions have the same bits for any number of cores; evaluations enter it once."""

    def state_dict(self) -> dict[str, Any]:
        """All that acting needs, for checkpoints."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved policy."""


class Statistics(Protocol):
    """The statistics of one iteration that every trainer reports."""

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


class Moments(TypedDict, total=False):
    """The keywords of `train()` for functions."""

    before_rollout: Callable[[Any], Metrics]
    after_episode: Callable[[Any, EpisodeRecord], Metrics]
    after_rollout: Callable[[Any], Metrics]
    after_iteration: Callable[[Any, Statistics], Metrics]
    after_evaluation: Callable[[Any, Mapping[str, float]], Metrics]


@runtime_checkable
class Trainer(Protocol):
    """Trains a policy iteration by iteration; can be stopped, saved and resumed.

    `PPOTrainer` implements it. Early stopping and runs use only these methods of a trainer.
    """

    @property
    def policy(self) -> TrainedPolicy:
        """The policy in training; it can act at any time."""

    @property
    def iteration(self) -> int:
        """The number of finished iterations."""

    @property
    def global_step(self) -> int:
        """Transitions so far, over all environments."""

    @property
    def total_timesteps(self) -> int:
        """The `global_step` at which training is finished."""

    @property
    def total_iterations(self) -> int:
        """The `iteration` at which training is expected to finish; for display."""

    @property
    def finished(self) -> bool:
        """Whether `total_timesteps` have been reached."""

    def train(
        self,
        *,
        callbacks: Any = (),
        evaluate: "Every[Mapping[str, float]] | None" = None,
        save: "Every[None] | None" = None,
        progress: bool = True,
        **functions: Unpack[Moments],
    ) -> TrainedPolicy:
        """Train until `finished` or `request_stop`. progress: show a progress bar on a terminal.

        callbacks, functions: see the module `callbacks`. After each iteration, `after_iteration` is called, then
        `evaluate` and `after_evaluation`, then the sink, then `save`.
        """

    def attach(self, callbacks: Any) -> None:
        """Pass the states that `load_state_dict` found to these `Callbacks`, and save theirs from now on.

        Raises UserError if a callback with a saved state is missing.
        """

    def request_stop(self) -> None:
        """Make `train` return soon; may be called from a callback, another thread or a signal handler."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume.

        torch loads it with `weights_only`, except for a `PickledState` in the list "environments", which a run saves in
        a separate file.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""

    def close(self) -> None:
        """Release all resources of the trainer; may be called twice."""


@runtime_checkable
class ChangesEnvs(Protocol):
    """A trainer that can continue with more or fewer environments."""

    @property
    def mid_rollout(self) -> bool:
        """Whether training stopped within a rollout, where environments cannot be replaced."""

    def replace_envs(self, envs: Any) -> str:
        """Train in these environments from the next rollout on, and continue the current episodes.

        Returns "", or the reason why all environments begin new episodes.
        """


class Every(NamedTuple, Generic[Result]):
    """An action that `train` takes after every `interval` iterations, and after the last one."""

    interval: int
    action: Callable[[Trainer], Result]

    def due(self, trainer: Trainer) -> bool:
        return is_due(trainer, self.interval)


def is_due(trainer: Trainer, interval: int) -> bool:
    """Whether an action is due that is taken after every `interval` iterations, and after the last one."""
    return trainer.iteration % interval == 0 or trainer.finished
