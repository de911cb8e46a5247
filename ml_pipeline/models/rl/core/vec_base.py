"""The part of a vector environment that runs in the trainer's process.

It distributes seeds, masks and actions, checks the order of calls, and shapes results as Gymnasium does.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from ml_pipeline.models.rl.core.arguments import ObservationMode, check_space_mismatches, observation_spaces
from ml_pipeline.models.rl.core.stepping.batch import copy_of, split, store
from ml_pipeline.models.rl.core.stepping.errors import ResetRequiredError
from ml_pipeline.models.rl.core.stepping.protocol import NOTHING, STEP, Command, Reply, ResetOrder
from ml_pipeline.models.rl.core.stepping.results import observation_rows
from ml_pipeline.models.rl.core.stepping.state import EnvState
from ml_pipeline.models.rl.core.workers.pool import WorkerPool

_NOT_BY_CALL = ("reset", "step", "close")
CUT_SHORT = "A {} was cut short, and the environments are at different steps."
_MOVES = (STEP, Command.RESET, Command.SET_STATES)  # cut short, these leave environments at different points
SENT = "send"  # pending as long as an environment that was sent was not received
_PENDING_NAMES: dict[Command | str, str] = {STEP: "step", Command.RESET: "reset", Command.CALL: "call", SENT: SENT}


class BlockVectorEnv(VectorEnv):
    """A Gymnasium vector environment with a pool of workers, which `ParallelEnv` and `SerialEnv` make."""

    def __init__(
        self, pool: WorkerPool, example: gymnasium.Env, *, copy: bool, observation_mode: ObservationMode = "same"
    ) -> None:
        """Take ownership of the pool, which is closed if this fails. example: an environment like those of the pool."""
        layout = pool.batch.layout
        self.num_envs = layout.num_envs
        self.copy = copy
        self.autoreset_mode = layout.autoreset_mode
        self.metadata = {**example.metadata, "autoreset_mode": layout.autoreset_mode}
        self.render_mode = example.render_mode
        self.single_action_space = layout.action_space
        self.action_space = batch_space(layout.action_space, self.num_envs)
        self._use(pool)
        self._keeps_finished = layout.autoreset_mode == AutoresetMode.DISABLED
        self._finished = np.zeros(self.num_envs, np.bool_)  # kept in that mode only
        self._pending: Command | str | None = None
        self._reset_first = ""  # why step() has to wait for a reset()
        try:
            check_space_mismatches(pool.space_mismatches, observation_mode)
            of_each = self.get_attr("observation_space") if observation_mode == "different" else ()
            self.observation_space, self.single_observation_space = observation_spaces(
                observation_mode, layout.observation_space, self.num_envs, of_each
            )
        except BaseException:
            self.close()
            raise

    def _use(self, pool: WorkerPool) -> None:
        """Step the environments with this pool from now on."""
        self._pool = pool
        self._batch = batch = pool.batch
        layout = batch.layout
        # Actions of a scalar Box keep their type, as in Gymnasium: np.float64 is a float, and np.float32 is not.
        is_scalar = isinstance(layout.action_space, spaces.Box) and layout.action_space.shape == ()
        self._actions = None if is_scalar else batch.actions
        self._final_rows = (
            None if batch.final_obs is None else observation_rows(layout.observation_space, batch.final_obs)
        )

    # Gymnasium's interface

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every environment, or in those for which options["reset_mask"] is True.

        seed: environment i gets seed + i, or element i of a sequence; None leaves its generator unchanged. options:
        passed to every environment, without the mask. Returns the observations of all environments, and the infos of
        those that were reset.
        """
        self._reset_async(seed, options)
        return self._reset_wait(None)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every environment. Returns observations, rewards float64 (N,), terminated, truncated bool (N,), infos.

        With copy=False, the observations are views that are valid until the next call. In SAME_STEP mode,
        infos["final_obs"] and infos["final_info"] hold the last observation and info of each episode that ended, and
        infos["_final_obs"] is True for its environment.
        """
        self._step_async(actions)
        return self._step_wait(None)

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute; returns one result per environment."""
        self._call_async(name, args, kwargs)
        return self._call_wait(None)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute. A list or tuple has one value per environment; any other value is set in all of them."""
        per_env = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(per_env) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(per_env)}` values for {self.num_envs} environments."
            )
        self._do(Command.SET_ATTR, name, per_env)

    def render(self) -> tuple[Any, ...]:
        """One rendered frame, or list of frames, per environment."""
        return self.call("render")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of every environment."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of every environment."""
        return self.get_attr("np_random_seed")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close environments and workers. timeout: seconds to wait for workers to end; terminate: do not wait."""
        if getattr(self, "_pending", None) is not None:
            assert self._pending is not None
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{_PENDING_NAMES[self._pending]}` to complete."
            )
        if hasattr(self, "_pool"):
            self._pool.close(timeout_s=timeout, terminate=terminate)

    def __del__(self) -> None:
        """Do nothing. In some versions, Gymnasium's method would close at exit, when modules are emptied."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What Gymnasium does not have

    def apply(self, function: Callable[..., Any], *args: Any, env_ids: Iterable[int] | None = None) -> list[Any]:
        """Run function(env, *args) on environments, in the processes that step them; returns one result per id.

        env_ids: None means all; -1 is the last one. An environment that is named twice runs the function once. Raises
        IndexError for an index that does not exist.
        """
        every = range(self.num_envs)
        chosen = list(every) if env_ids is None else [every[index] for index in env_ids]
        wanted = [index in chosen for index in range(self.num_envs)]
        values = self._do(Command.APPLY, (function, args), wanted).values
        return [values[index] for index in chosen]

    def get_states(self) -> list[EnvState]:
        """The full state of every environment: wrappers, generators, pending resets.

        A state is plain data if the environment supports that, as those of this package and simple ones of Gymnasium
        do, else a pickle. Raises StateNotAvailable if an environment cannot be saved without loss.
        """
        return self._do(Command.GET_STATES).values

    def set_states(self, states: Sequence[EnvState | None]) -> None:
        """Put every environment into a state that `get_states` returned; None leaves it unchanged.

        Loading a `PickledState` runs code, so pass only states that you saved yourself.
        """
        if len(states) != self.num_envs:
            raise ValueError(f"set_states needs one state per environment, {self.num_envs}, but got {len(states)}.")
        self._finished[:] = self._do(Command.SET_STATES, None, list(states)).values
        self._reset_first = ""

    def continue_from(self, states: Sequence[EnvState], *, seed: int) -> Any:
        """Put environment i into state i; environments without a state are reset with seed + i.

        Surplus states are ignored. Returns the observations of all environments if some were reset, else None.
        """
        n_kept = min(len(states), self.num_envs)
        self.set_states([*states[:n_kept], *[None] * (self.num_envs - n_kept)])
        if n_kept == self.num_envs:
            return None
        return self.reset(seed=seed, options={"reset_mask": np.arange(self.num_envs) >= n_kept})[0]

    # The two halves of each call

    def _reset_async(self, seed: Any, options: dict[str, Any] | None) -> None:
        self._check_idle("reset_async")
        mask, options = split_mask(options, self.num_envs)
        orders = [ResetOrder(*order) for order in zip(seeds_of(seed, self.num_envs), mask.tolist(), strict=True)]
        self._post(Command.RESET, options, orders)
        if mask.all():
            self._reset_first = ""
        self._finished[mask] = False

    def _reset_wait(self, timeout_s: float | None) -> tuple[Any, dict[str, Any]]:
        reply = self._collect(Command.RESET, "reset", timeout_s)
        return self._observations(reply), join_infos({}, reply.infos, self.num_envs, self._add_info)

    def _step_async(self, actions: Any) -> None:
        if self.closed or self._pending is not None:
            self._check_idle("step_async")
        if self._reset_first:
            raise ResetRequiredError(f"{self._reset_first} Call reset() before step().")
        if self._keeps_finished:
            self._check_unfinished(np.flatnonzero(self._finished))
        if self._actions is None:
            self._post(STEP, None, split(self.action_space, actions, self.num_envs))
        else:
            if not self._pool.is_drained:
                self._pool.drain_replies()
            store(self._actions, actions, "actions")
            self._post(STEP)

    def _step_wait(self, timeout_s: float | None) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        reply = self._collect(STEP, "step", timeout_s)
        batch = self._batch
        terminated, truncated = batch.terminated.copy(), batch.truncated.copy()
        if self._keeps_finished:
            self._finished = terminated | truncated
        infos = {} if reply is NOTHING else self._step_infos(reply, terminated | truncated)
        return self._observations(reply), batch.rewards.copy(), terminated, truncated, infos

    def _call_async(self, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        self._check_idle("call_async")
        if name in _NOT_BY_CALL:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        self._post(Command.CALL, (name, args, kwargs or {}))

    def _call_wait(self, timeout_s: float | None) -> tuple[Any, ...]:
        return tuple(self._collect(Command.CALL, "call", timeout_s).values)

    def _do(self, command: Command, common: Any = None, per_env: list[Any] | None = None) -> Reply:
        name = command.name.lower()
        self._check_idle(name)
        self._post(command, common, per_env)
        return self._collect(command, name, None)

    def _check_idle(self, name: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")
        if self._pending is not None:
            pending = _PENDING_NAMES[self._pending]
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{pending}` to complete.", pending
            )

    def _check_unfinished(self, finished: np.ndarray) -> None:
        if len(finished):
            raise ResetRequiredError(
                f"The episodes of environments {finished.tolist()} are over, and autoreset is disabled. Reset them "
                "first: reset(options={'reset_mask': mask})."
            )

    def _collect(self, command: Command, name: str, timeout_s: float | None) -> Reply:
        if self.closed:
            self._check_idle(f"{name}_wait")
        if self._pending is not command:
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)
        self._pending = None  # also if the wait fails; the pool then drops the late reply
        try:
            return self._pool.collect(timeout_s)
        except BaseException as error:
            self.closed = self._pool.closed
            if command in _MOVES and not isinstance(error, multiprocessing.TimeoutError):
                self._reset_first = CUT_SHORT.format(name)
            raise

    def _post(self, command: Command, common: Any = None, per_env: list[Any] | None = None) -> None:
        try:
            self._pool.post(command, common, per_env)
        except BaseException as error:
            self.closed = self._pool.closed
            if command in _MOVES and not isinstance(error, Exception):  # Ctrl-C, when some may have been sent off
                self._reset_first = CUT_SHORT.format(command.name.lower())
            raise
        self._pending = command

    # Shapes

    def _observations(self, reply: Reply) -> Any:
        arrays = self._batch.observations
        if arrays is None:
            empty: Any = create_empty_array(self.single_observation_space, self.num_envs)
            return concatenate(self.single_observation_space, reply.values, empty)
        return copy_of(arrays) if self.copy else arrays

    def _step_infos(self, reply: Reply, done: np.ndarray) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        if reply.finished and self.autoreset_mode == AutoresetMode.SAME_STEP:
            infos = self._final_infos(reply, done)
        return join_infos(infos, reply.infos, self.num_envs, self._add_info)

    def _final_infos(self, reply: Reply, done: np.ndarray) -> dict[str, Any]:
        """The result of `_add_info` for all final_obs and final_info, in 3 µs instead of 7."""
        final_obs = np.empty(self.num_envs, dtype=object)  # filled with None
        final_info: dict[str, Any] = {}
        if self._final_rows is not None:
            for index in done.nonzero()[0].tolist():
                final_obs[index] = self._final_rows.read(index)
        for index, observation, info in reply.finals:
            if self._final_rows is None:
                final_obs[index] = observation
            final_info = self._add_info(final_info, info, index)
        return {"final_obs": final_obs, "_final_obs": done, "final_info": final_info, "_final_info": done.copy()}


Infos = dict[str, Any]


def join_infos(
    infos: Infos, parts: Sequence[tuple[int, Infos]], num_envs: int, add: Callable[[Infos, Infos, int], Infos]
) -> Infos:
    """`infos` with `parts` added: pairs of an environment's index and its info.

    add: Gymnasium's `VectorEnv._add_info`, which defines the result. Numbers of one type that all parts have are joined
    together: three numbers from each of eight environments take 8 µs, and 30 µs one by one.
    """
    keys = parts[0][1].keys() if parts else {}
    if len(parts) < 2 or any(info.keys() != keys for _, info in parts) or not infos.keys().isdisjoint(keys):
        for index, info in parts:
            infos = add(infos, info, index)
        return infos
    indices = [index for index, _ in parts]
    for key in keys:
        values = [info[key] for _, info in parts]
        kind = type(values[0])
        is_number = kind in (int, float, bool) or issubclass(kind, np.number)
        if is_number and all(type(value) is kind for value in values):
            infos[key] = array = np.zeros(num_envs, kind)
            infos[f"_{key}"] = mask = np.zeros(num_envs, np.bool_)
            array[indices] = values
            mask[indices] = True
        else:
            for index, value in zip(indices, values, strict=True):
                infos = add(infos, {key: value}, index)
    return infos


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """One seed per environment: `seed` + i, or a sequence of them. Raises ValueError if its length is not num_envs."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, Integral):
        return [int(seed) + index for index in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}."
        )
    return [None if one is None else int(one) for one in seed]


def split_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[np.ndarray, dict[str, Any] | None]:
    """Which environments to reset, bool (N,), and the options without the mask; the argument is not changed.

    Raises TypeError or ValueError, as Gymnasium does, if the mask is not bool (N,), or if it is all False.
    """
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, np.bool_), options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}.")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}.")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}.")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}."
        )
    return mask, {key: value for key, value in options.items() if key != "reset_mask"}
