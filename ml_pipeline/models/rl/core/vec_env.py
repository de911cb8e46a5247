"""`ParallelEnv`: worker processes step environments, with the results of stepping them one after another."""

import contextlib
import multiprocessing
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.models.rl.core.arguments import (
    ObservationMode,
    check_factories,
    check_failure_options,
    check_observation_mode,
    check_share,
    check_sizes,
    check_space_mismatches,
    division_of,
)
from ml_pipeline.models.rl.core.partial_steps import PartialStep, PartialSteps
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import ResetRequiredError
from ml_pipeline.models.rl.core.stepping.protocol import Command
from ml_pipeline.models.rl.core.stepping.state import EnvState
from ml_pipeline.models.rl.core.vec_base import CUT_SHORT, SENT, BlockVectorEnv
from ml_pipeline.models.rl.core.workers.choice import HERE, Division, StepCost, measure_step
from ml_pipeline.models.rl.core.workers.open import PoolOpener
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.runtime.global_random import global_generators_untouched

__all__ = ["ParallelEnv", "SerialEnv"]

StartMethod = Literal["spawn", "fork", "forkserver"]


class ParallelEnv(BlockVectorEnv):
    """A `gymnasium.vector.VectorEnv` with worker processes, each of which steps a block of the environments.

    env_fns: functions that make one environment each, including lambdas and closures.
    num_workers: the number of worker processes; 0 means that this process steps all environments. "auto" measures a
    step for at most half a second and chooses the fastest: this process, workers, or both. With step_timeout_s or
    on_worker_failure="restart", "auto" starts one worker per core without measuring. The choice never changes results.
    start_method: how workers are started; by default "forkserver" on Linux, "spawn" elsewhere.
    autoreset_mode: one of the three modes of Gymnasium.
    copy: if False, step() and reset() return views of observations that are valid until the next call, not copies.
    step_timeout_s: time limit for a step (including resets) and for a reset(), after which StepTimeoutError is raised.
    Workers get a minute more to start. Needs workers.
    on_worker_failure: what happens if a worker is killed, crashes or hangs. "raise" raises WorkerFailedError and closes
    this object. "restart" starts another worker. The next step then reports the lost episodes as truncated at their
    last observation, with reward 0 and the info "worker_restarted", and new episodes begin with new seeds. Attributes
    that were set are lost. A worker that fails four times in a row raises WorkerFailedError. Needs workers.
    observation_mode: as in Gymnasium. "different" allows observation spaces to differ in everything but shape and
    dtype; so does a tuple of the batch's space and the single space.
    num_groups: the number of groups of consecutive environments for send() and recv(). Use 2 to step one half while a
    policy acts for the other, and num_envs if steps take unequal time. Each group needs its own worker, unless this
    process steps all environments.

    Environment i is seeded seed + i, whatever the workers. `stepping.errors` has a tree of all exceptions. After a
    worker failure, this object is closed; after an environment failure, call reset(). The death of a worker is noticed
    within a second.

    >>> import gymnasium
    >>> envs = ParallelEnv([lambda: gymnasium.make("CartPole-v1")] * 4, num_workers=2)
    >>> observations, infos = envs.reset(seed=7)
    >>> observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0, 1])
    >>> rewards, envs.num_workers
    (array([1., 1., 1., 1.]), 2)
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        *,
        num_workers: int | Literal["auto"] = "auto",
        start_method: StartMethod | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        copy: bool = True,
        step_timeout_s: float | None = None,
        on_worker_failure: Literal["raise", "restart"] = "raise",
        observation_mode: ObservationMode = "same",
        num_groups: int = 1,
    ) -> None:
        expects_failures = step_timeout_s is not None or on_worker_failure == "restart"
        check_failure_options(num_workers, step_timeout_s, on_worker_failure, expects_failures=expects_failures)
        check_factories(env_fns)
        check_sizes(len(env_fns), num_workers, num_groups)
        check_observation_mode(observation_mode)
        self._start_method = _start_method(start_method)
        self._failure_options = step_timeout_s, on_worker_failure
        self._observation_mode = observation_mode
        self._opener = opener = PoolOpener(
            env_fns=env_fns,
            autoreset_mode=AutoresetMode(autoreset_mode),
            start_method=self._start_method,
            num_groups=num_groups,
            step_timeout_s=step_timeout_s,
        )
        self._partial: PartialSteps | None = None
        if num_workers == 0 and num_groups == 1:
            self._division = HERE
            pool = opener.open(HERE, None)
            super().__init__(pool, pool.here[0].envs[0], copy=copy, observation_mode=observation_mode)
            return
        with closing(opener.scratch()) as block:
            (example,) = block.envs
            measured = example if self.may_step_here else None
            self._division = division_of(num_workers, len(env_fns), num_groups, measured)
            is_here = self._division == HERE and num_groups == 1
            spaces = None if is_here else (example.observation_space, example.action_space)
            pool = opener.open(self._division, spaces, on_failure=on_worker_failure)
            super().__init__(pool, example, copy=copy, observation_mode=observation_mode)

    def __repr__(self) -> str:
        started = f", start_method={self.start_method!r}" if self.num_workers else ""
        return f"{type(self).__name__}(num_envs={self.num_envs}, num_workers={self.num_workers}{started})"

    @property
    def num_workers(self) -> int:
        """The number of worker processes; 0 means that this process steps all environments."""
        return self._division.n_workers

    @property
    def steps_here(self) -> bool:
        """Whether this process steps environments: all of them without workers, or a share with workers."""
        return self._division.steps_here

    @property
    def start_method(self) -> str | None:
        """How the workers were started; None without workers."""
        return self._start_method if self.num_workers else None

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, in the order of their environments."""
        return [process.pid for process in self._pool.processes if process.pid is not None]

    @property
    def num_restarts(self) -> int:
        """The number of failed workers that have been replaced."""
        return 0 if self._pool.restarts is None else self._pool.restarts.total

    def take_failures(self, *, first_env: int = 0, n_envs: int | None = None) -> list[str]:
        """Descriptions of the worker failures since the last call, one sentence each; at most the last 100.

        first_env, n_envs: number environments among n_envs in total, of which this object has those from first_env on.
        """
        if self._pool.restarts is None:
            return []
        taken = list(self._pool.restarts.failures)
        self._pool.restarts.failures.clear()
        for failure in taken:
            failure.number_among(first_env, n_envs or self.num_envs)
        return [str(failure).partition("\n")[0] for failure in taken]

    def take_notices(self) -> list[str]:
        """The reasons, since the last call, why an `EnvPool` gave these environments no lease, one sentence each."""
        leases = self._opener.leases
        if leases is None:
            return []
        taken = list(dict.fromkeys(leases.refusals))
        leases.refusals.clear()
        return taken

    def check_reported(self) -> None:
        """Raise RescaleLater if a worker was replaced and no step has reported the lost episodes yet."""
        refuse_unreported(self._pool)

    @property
    def waited_s(self) -> float:
        """The total time that this process has waited for workers, in seconds."""
        return self._pool.waited_s

    def rescale(self, num_workers: int | Literal["auto"], *, steps_here: bool = False) -> None:
        """Change the number of workers between two steps; results do not change.

        num_workers: as in the constructor; "auto" measures again. steps_here: let this process step a share as well.
        New environments are made and put into the states of the old ones, which are then closed. Attributes from
        set_attr() are kept if they are part of a state. Views from copy=False stay readable.

        Raises StateNotAvailable if an environment cannot be saved in full, RescaleLater if a worker was just replaced
        and no step has reported it, UserError if the number of workers is invalid, and any error from starting workers.
        After an error, the old workers continue unchanged.
        """
        self._check_idle("rescale")
        opener, pool = self._opener, self._pool
        check_sizes(self.num_envs, num_workers, opener.num_groups)
        step_timeout_s, on_failure = self._failure_options
        expects_failures = step_timeout_s is not None or on_failure == "restart"
        check_failure_options(num_workers, step_timeout_s, on_failure, expects_failures=expects_failures)
        check_share(num_workers, steps_here=steps_here, is_possible=self.may_step_here)
        refuse_unreported(pool)
        if num_workers == "auto" and self.may_step_here:
            with self._scratch() as example:
                division = division_of(num_workers, self.num_envs, opener.num_groups, example)
        else:
            division = division_of(num_workers, self.num_envs, opener.num_groups, None, steps_here=steps_here)
        if division == self._division:
            return
        states = self.get_states()
        refuse_unreported(pool)
        moved = moved_pool(pool, opener, division, states, observation_mode=self._observation_mode)
        self._division = division
        self._use(moved)
        close_left(pool)

    def measure_step(self) -> StepCost | None:
        """The cost of a step, measured with a separate environment for at most half a second.

        None if it cannot be measured: the environment rejects random actions, or steps may hang or crash
        (step_timeout_s, "restart").
        """
        self._check_idle("measure_step")
        if not self.may_step_here:
            return None
        with self._scratch() as example:
            return measure_step(example)

    @property
    def may_step_here(self) -> bool:
        """Whether this process may step environments: not if steps may hang or crash, and not in groups."""
        return self._failure_options == (None, "raise") and self._opener.num_groups == 1

    @contextmanager
    def _scratch(self) -> Iterator[gymnasium.Env]:
        in_use = [env for worker in self._pool.here for env in worker.envs]
        with global_generators_untouched(), closing(self._opener.scratch(in_use)) as block:
            yield block.envs[0]

    def _use(self, pool: WorkerPool) -> None:
        super()._use(pool)
        # For objects that are never closed. At exit, methods of this object may find their modules emptied.
        weakref.finalize(self, _abandon, pool)
        self._partial = PartialSteps(pool, self._actions) if self._opener.num_groups > 1 else None

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset()."""
        self._reset_async(seed, options)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Finish reset_async(). After `timeout` seconds, give up and raise multiprocessing.TimeoutError."""
        return self._reset_wait(timeout)

    def step_async(self, actions: Any) -> None:
        """Begin a step()."""
        self._step_async(actions)

    def step_wait(self, timeout: float | None = None) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Finish step_async(). After `timeout` seconds, give up and raise multiprocessing.TimeoutError.

        The environments still finish a step that was given up. The next call waits for it, and drops its results.
        """
        return self._step_wait(timeout)

    def send(self, actions: Any, env_ids: Iterable[int]) -> None:
        """Begin a step of these environments, which must be whole groups; others may be stepping meanwhile.

        actions: as for step(); action k is for environment `env_ids[k]`.
        """
        partial = self._grouped()
        if self.closed or (self._pending is not None and not partial.is_under_way):
            self._check_idle("send")
        if self._reset_first:
            raise ResetRequiredError(f"{self._reset_first} Call reset() before send().")
        ids = list(env_ids)
        if self._keeps_finished:
            self._check_unfinished(np.array([index for index in ids if self._finished[index]], np.int64))
        try:
            partial.send(actions, ids)
        finally:
            self.closed = self._pool.closed
        self._pending = SENT

    def recv(self, min_ready: int = 1, *, env_ids: Iterable[int] | None = None) -> PartialStep:
        """Finish steps that send() began: those of `env_ids`, or all that are ready once `min_ready` environments are.

        Which environments are ready first depends on timing, and so does what a policy learns from them. With `env_ids`
        (whole groups, in any order), results depend on seeds and actions only. After a failure, the results of other
        steps in progress are dropped.
        """
        partial = self._grouped()
        if self.closed:
            self._check_idle("recv")
        try:
            numbers = partial.choose(min_ready, env_ids)
        finally:
            self.closed = self._pool.closed
        try:
            step = partial.collect(numbers)
        except BaseException:
            self.closed = self._pool.closed
            self._reset_first = CUT_SHORT.format("step")
            self._pending = None
            partial.forget()
            raise
        if self._keeps_finished:
            self._finished[step.env_ids] = step.terminated | step.truncated
        if not partial.is_under_way:
            self._pending = None
        return step

    def _grouped(self) -> PartialSteps:
        if self._partial is None:
            raise UserError("send() and recv() step groups of environments, but num_groups is 1; 2 makes halves.")
        return self._partial

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin a call()."""
        self._call_async(name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Finish call_async(). Raises multiprocessing.TimeoutError after `timeout` seconds."""
        return self._call_wait(timeout)


def _abandon(pool: WorkerPool) -> None:
    if not pool.closed:
        pool.close(terminate=True)


def _start_method(name: str | None) -> str:
    available = multiprocessing.get_all_start_methods()
    if name is None:
        return "forkserver" if sys.platform == "linux" else "spawn"
    if name not in available:
        raise UserError(f'start_method "{name}" does not exist here. {nearest(name, available)}')
    return name


class RescaleLater(UserError):
    """A worker was just replaced, and the next step must first report the lost episodes."""


def refuse_unreported(pool: WorkerPool) -> None:
    """Raise RescaleLater if the next step must report lost episodes."""
    if pool.restarts is not None and pool.restarts.unreported:
        raise RescaleLater("A worker was just replaced, and the next step reports this; rescale after that step.")


def moved_pool(
    old: WorkerPool,
    opener: PoolOpener,
    division: Division,
    states: Sequence[EnvState],
    *,
    observation_mode: ObservationMode,
) -> WorkerPool:
    """A new pool whose environments are in these states, with the counts of the old pool, which stays open.

    Raises any error from opening a pool or setting states; the new pool is then closed.
    """
    layout = old.batch.layout
    in_use = [env for worker in old.here for env in worker.envs]
    with global_generators_untouched():
        # Workers that fail here are not restarted with new episodes, because the old pool still has the episodes.
        new = opener.open(division, (layout.observation_space, layout.action_space), not_these=in_use)
        try:
            check_space_mismatches(new.space_mismatches, observation_mode)
            new.post(Command.SET_STATES, None, list(states))
            new.collect()
        except BaseException:
            with contextlib.suppress(Exception):
                new.close(terminate=True)
            raise
    new.waited_s = old.waited_s
    if old.restarts is not None:
        old.restarts.move_to(new.batch)
        new.restarts, old.restarts = old.restarts, None
    return new


def close_left(old: WorkerPool) -> None:
    """Close the old pool; an environment of this process that fails in close() causes a warning."""
    try:
        old.close()
    except Exception as error:  # a user's environment may raise anything, and its state has been moved
        warnings.warn(
            f"An environment that was moved to another worker failed in close(): {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
