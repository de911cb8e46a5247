"""Callbacks: functions that a trainer calls at five moments of an iteration, and early stopping, which is made of them.

    before_rollout(trainer)               before the first step of a rollout
    after_episode(trainer, episode)       when the rollout is full, for each episode that ended in it
    after_rollout(trainer)                then, before the update
    after_iteration(trainer, statistics)  after the update
    after_evaluation(trainer, metrics)    after an evaluation, if one is due

They are keywords of `train()`, or methods of objects in its `callbacks`. Episodes come in the order of the steps in
which they ended, then of their environments, for any number of workers. A dict of numbers that a callback returns is
written with the metrics of the iteration; of `after_episode`, the mean over the episodes. An object with `state_dict`
and `load_state_dict` continues with the trainer's checkpoint.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from ml_pipeline.config.errors import UserError, excerpt, nearest
from ml_pipeline.models.rl.algorithms.trainer import Moments, Statistics
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.ranks import RankLost, Ranks, first_reason
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.monitoring.sinks import EpisodeRecord
from ml_pipeline.runtime.plain_data import NotPlain, from_plain, to_plain
from ml_pipeline.runtime.user_code import innermost_user_line

MOMENTS = tuple(get_type_hints(Moments))
_OWN = __name__.partition(".")[0]
_LONGEST = 100


class CallbackFailed(TrainingFailed):
    """A user's callback raised an exception, which is the cause, or returned something else than numbers."""


class Callbacks:
    """The callbacks of one call of `train()`.

    One that fails is not called again. The others go on, so that the iteration ends as usual; `check` then raises.
    """

    def __init__(self, callbacks: Sequence[object] = (), **functions: Any) -> None:
        """callbacks: objects with some of the methods of `MOMENTS`. functions: by moment.

        Raises UserError if an object has none of these methods, or if a keyword is not a moment or not a function.
        """
        if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
            raise UserError(
                f"callbacks must be a list of objects, such as [Curriculum()], but got {_shown(callbacks)}."
            )
        self._objects = _named(callbacks)
        self._functions: dict[str, list[tuple[str, str, Callable[..., Any]]]] = {moment: [] for moment in MOMENTS}
        for name, callback in self._objects.items():
            found = {moment: getattr(callback, moment) for moment in MOMENTS if hasattr(callback, moment)}
            if not found or isinstance(callback, type):
                what = f"the class {callback.__name__}" if isinstance(callback, type) else _shown(callback)
                raise UserError(
                    f"A callback must be an object with one of the methods {', '.join(MOMENTS)}, but got {what}; pass "
                    "functions by keyword, such as train(after_iteration=function)."
                )
            for moment, function in found.items():
                self._functions[moment].append((name, f"{name}.{moment}", function))
        for moment, function in functions.items():
            if moment not in MOMENTS:
                raise UserError(f'train() has no argument "{moment}". {nearest(moment, MOMENTS)}')
            if callable(function):
                shown = getattr(function, "__qualname__", type(function).__name__)
                self._functions[moment].append((moment, f"{moment}={shown}", function))
            elif function is not None:
                raise UserError(f"{moment} must be a function, but got {_shown(function)}.")
        self._failed: set[str] = set()
        self._failure: CallbackFailed | None = None
        self._metrics: dict[str, float] = {}
        self._saved: dict[str, Any] = {}

    @classmethod
    def to_come(cls, saved: Mapping[str, Any]) -> "Callbacks":
        """None yet, but their saved state."""
        callbacks = cls()
        callbacks._saved = dict(saved)
        return callbacks

    @property
    def names(self) -> frozenset[str]:
        """The names under which objects are saved."""
        return frozenset(self._objects)

    def has(self, moment: str) -> bool:
        """Whether a callback has this moment."""
        return bool(self._functions[moment])

    def before_rollout(self, trainer: Any) -> None:
        self._metrics.update(self._call("before_rollout", trainer))

    def after_rollout(self, trainer: Any, episodes: Sequence[EpisodeRecord]) -> None:
        """`after_episode` for each of the episodes, then `after_rollout`."""
        values = defaultdict(list)
        for episode in episodes if self.has("after_episode") else ():
            for name, value in self._call("after_episode", trainer, episode).items():
                values[name].append(value)
        self._metrics.update({name: float(np.mean(each)) for name, each in values.items()})
        self._metrics.update(self._call("after_rollout", trainer))

    def after_iteration(self, trainer: Any, statistics: Statistics) -> None:
        self._metrics.update(self._call("after_iteration", trainer, statistics))

    def after_evaluation(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Nothing if a stop cut the evaluation short, so that there are no metrics."""
        if metrics:
            self._metrics.update(self._call("after_evaluation", trainer, dict(metrics)))

    def take_metrics(self) -> dict[str, float]:
        """What the callbacks returned since the last call."""
        taken, self._metrics = self._metrics, {}
        return taken

    def check(self, ranks: Ranks) -> None:
        """Raise CallbackFailed, on all ranks, if a callback failed on one of them."""
        own = "" if self._failure is None else str(self._failure)
        if any(self._functions.values()) and (reason := first_reason(ranks, "whether a callback failed", own)):
            raise self._failure or CallbackFailed(f"On another rank: {reason}")

    def state_dict(self) -> dict[str, Any]:
        """The states by name, as plain data, and the metrics that are not yet written; empty if there are none.

        Raises CallbackFailed if a callback does not return plain data.
        """
        states = {}
        for name, callback in self._objects.items():
            if hasattr(callback, "state_dict"):
                state = _called(f"{name}.state_dict", callback.state_dict)
                try:
                    states[name] = to_plain(state)
                except NotPlain as error:
                    raise CallbackFailed(
                        f"{name}.state_dict must return numbers, texts, arrays, or lists and dicts of them, but holds "
                        f"{error}; convert it there, and back in load_state_dict."
                    ) from error
        own = {"states": states, "metrics": dict(self._metrics)} if states or self._metrics else {}
        return own or self._saved

    def go_on_from(self, earlier: "Callbacks") -> None:
        """Take the states that `earlier` was loaded with.

        Raises UserError if a callback with a state is missing, and CallbackFailed if one does not accept its state.
        """
        states = earlier._saved.get("states", {})
        for name in states:
            if not hasattr(self._objects.get(name), "load_state_dict"):
                here = "has no load_state_dict" if name in self._objects else "is not here"
                raise UserError(
                    f"The checkpoint holds the state of the callback {name}, which {here}; pass it again in callbacks, "
                    "or start a new run from these weights with init_from."
                )
        for name, saved in states.items():
            _called(f"{name}.load_state_dict", self._objects[name].load_state_dict, from_plain(saved))
        self._metrics.update(earlier._saved.get("metrics", {}))

    def _call(self, moment: str, *arguments: Any) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for owner, name, function in self._functions[moment]:
            if owner not in self._failed:
                try:
                    metrics.update(_checked(name, _called(name, function, *arguments)))
                except CallbackFailed as failure:
                    self._failed.add(owner)
                    self._failure = self._failure or failure
        return metrics


def _named(callbacks: Sequence[object]) -> dict[str, Any]:
    """The callbacks by class; a second one of a class is number 2."""
    named: dict[str, Any] = {}
    for callback in callbacks:
        name = type(callback).__name__
        count = sum(type(other).__name__ == name for other in named.values())
        named[f"{name} {count + 1}" if count else name] = callback
    return named


def _checked(name: str, returned: Any) -> Mapping[str, float]:
    if returned is None:
        return {}
    if isinstance(returned, Mapping):
        wrong = {
            each: value
            for each, value in returned.items()
            if not (isinstance(each, str) and isinstance(value, Real | np.bool_))
        }
        if not wrong:
            return {each: float(value) for each, value in returned.items()}
        returned = wrong
    raise CallbackFailed(
        f"{name} must return None or a dict of numbers by name, such as {{'mine/fee_bps': 2.0}}, but returned "
        f"{_shown(returned)}; return float(...) of each value."
    )


def _called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a callback's function. Raises CallbackFailed for errors of a user's code."""
    try:
        return function(*arguments)
    except (VectorEnvError, RankLost):  # these say which environment or rank failed
        raise
    except Exception as error:
        if (getattr(function, "__module__", None) or "").partition(".")[0] == _OWN:
            raise
        place = innermost_user_line(error)
        what = excerpt(f"{type(error).__name__}: {error}".rstrip("."), 10 * _LONGEST)
        where = f"line {place.lineno} of {Path(place.filename).name}"
        raise CallbackFailed(
            f"The callback {name} failed in {where}: {what}. Correct it, then resume or train again."
        ) from error


def _shown(value: object) -> str:
    return excerpt(repr(value), _LONGEST)


class StopAtReturn:
    """Stops when the mean return of the last 100 training episodes reaches `target`."""

    def __init__(self, target: float) -> None:
        self._target = target

    def after_iteration(self, trainer: Any, statistics: Statistics) -> None:
        if statistics.mean_return_100 >= self._target:
            trainer.request_stop()


class StopOnPlateau:
    """Stops when the mean return of the last 100 training episodes has not risen for `patience` iterations.

    Only a return above the best so far plus `min_rise` counts as a rise. A resumed training stops in the same iteration
    as an uninterrupted one.
    """

    def __init__(self, patience: int, *, min_rise: float = 0.0) -> None:
        self._patience = patience
        self._min_rise = min_rise
        self._best = -math.inf
        self._since = 0

    def after_iteration(self, trainer: Any, statistics: Statistics) -> None:
        if statistics.mean_return_100 > self._best + self._min_rise:
            self._best, self._since = statistics.mean_return_100, 0
        elif not math.isnan(statistics.mean_return_100):  # NaN before the first episode has ended
            self._since += 1
        if self._since >= self._patience:
            trainer.request_stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._since = state["best"], state["since"]
