"""`ParallelEnv`: environments stepped by worker processes, with the results of stepping them one after another."""

import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from numbers import Integral
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.models.rl.core.observation_mode import ObservationMode, check_observation_mode
from ml_pipeline.models.rl.core.partial_steps import PartialStep, PartialSteps
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.core.stepping.batch import BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import ResetRequiredError
from ml_pipeline.models.rl.core.vec_base import CUT_SHORT, SENT, BlockVectorEnv
from ml_pipeline.models.rl.core.workers.choice import HERE, Division, choose_division, measure_step, measure_wake
from ml_pipeline.models.rl.core.workers.groups import divide
from ml_pipeline.models.rl.core.workers.open import open_here, open_pool
from ml_pipeline.models.rl.core.workers.start import WorkerStarter
from ml_pipeline.runtime.cores import IdleWatch, usable_cores

__all__ = ["ParallelEnv", "SerialEnv"]

StartMethod = Literal["spawn", "fork", "forkserver"]

_SPIN_S = 2e-4  # long enough for a small policy to answer; the update and all else that is longer is slept through
_BUSY_CORES, _RECHECK_DELAY_S = 0.3, 0.15  # of a core that others use, and how much later it is looked at again


class ParallelEnv(BlockVectorEnv):
    """A `gymnasium.vector.VectorEnv` over worker processes, each of which owns a block of the environments.

    env_fns: functions that make the environments; lambdas and closures will do.
    num_workers: how many processes step environments; 0: this one alone. "auto" measures a step for at most half a
    second and chooses the fastest: this process, workers, or both. With step_timeout_s or on_worker_failure="restart",
    "auto" starts one worker per core and measures nothing. The choice never changes results.
    start_method: default "forkserver" on Linux, "spawn" elsewhere.
    autoreset_mode: one of Gymnasium's three.
    copy: whether step() and reset() return observations of their own, or views that are valid until the next call.
    step_timeout_s: a step (with the resets in it) or a reset() that takes longer raises StepTimeoutError; so does a
    worker that takes a minute longer than that to start. Needs workers.
    on_worker_failure: what to do if a worker is killed, crashes or is stuck. "raise" raises WorkerFailedError and
    closes this object. "restart" starts another worker: the next step reports the lost episodes as truncated at their
    last observation, with reward 0 and the info "worker_restarted", and new episodes begin with new seeds. Attributes
    that were set are lost. A worker that fails four times in a row is raised. Needs workers.
    observation_mode: as in Gymnasium. "different" lets observation spaces differ in all but shape and dtype; so does a
    tuple of the batch's space and the single one.
    num_groups: into how many groups of consecutive environments send() and recv() divide the batch: 2 to step one half
    while a policy looks at the other, num_envs if steps take unequal time. Each group needs a worker of its own, unless
    this process steps all.

    Environment i is seeded seed + i, whichever worker owns it. `stepping.errors` draws all exceptions. After a worker
    failed, this object is closed; after an environment failed, it waits for a reset(). A worker that dies is noticed
    within a second, whatever the others are doing.

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
        _check_failure_options(num_workers, step_timeout_s, on_worker_failure, expects_failures=expects_failures)
        _check_factories(env_fns)
        _check_sizes(len(env_fns), num_workers, num_groups)
        check_observation_mode(observation_mode)
        mode, self._start_method = AutoresetMode(autoreset_mode), _start_method(start_method)
        self._partial: PartialSteps | None = None
        if num_workers == 0 and num_groups == 1:
            self._division = HERE
            pool = open_here(env_fns, mode)
            super().__init__(pool, pool.here[0].envs[0], copy=copy, observation_mode=observation_mode)
            return
        with closing(EnvBlock(env_fns[:1], 0, len(env_fns), mode)) as block:
            (example,) = block.envs
            measured = None if expects_failures or num_groups > 1 else example
            self._division = _division(num_workers, len(env_fns), num_groups, measured)
            if self._division == HERE and num_groups == 1:
                pool = open_here(env_fns, mode)
            else:
                groups = divide(len(env_fns), num_groups, self._division)
                n_blocks = sum(map(len, groups))
                layout = BatchLayout(len(env_fns), example.observation_space, example.action_space, mode, n_blocks)
                spin_s = _SPIN_S if self.num_workers + 1 <= usable_cores() else 0.0
                starter = WorkerStarter(env_fns, layout, self.start_method, spin_s)
                pool = open_pool(
                    starter, self._division, groups, step_timeout_s=step_timeout_s, on_failure=on_worker_failure
                )
            super().__init__(pool, example, copy=copy, observation_mode=observation_mode)
        if num_groups > 1:
            self._partial = PartialSteps(pool, self._actions)

    def __repr__(self) -> str:
        started = f", start_method={self.start_method!r}" if self.num_workers else ""
        return f"{type(self).__name__}(num_envs={self.num_envs}, num_workers={self.num_workers}{started})"

    @property
    def num_workers(self) -> int:
        """How many worker processes step environments; 0: this process steps all."""
        return self._division.n_workers

    @property
    def steps_here(self) -> bool:
        """Whether this process steps environments: all of them without workers, or a share if "auto" chose so."""
        return self._division.steps_here

    @property
    def start_method(self) -> str | None:
        """How the workers were started; None without workers."""
        return self._start_method if self.num_workers else None

    @property
    def num_restarts(self) -> int:
        """How many failed workers were replaced so far."""
        return 0 if self._pool.restarts is None else self._pool.restarts.total

    def take_failures(self) -> list[str]:
        """How the workers failed that were replaced since the last call, one sentence each; at most the last 100."""
        if self._pool.restarts is None:
            return []
        taken = list(self._pool.restarts.failures)
        self._pool.restarts.failures.clear()
        return taken

    @property
    def waited_s(self) -> float:
        """How long this process has waited for workers, all in all."""
        return self._pool.waited_s

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begins what reset() does."""
        self._reset_async(seed, options)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Ends what reset_async() began. Raises multiprocessing.TimeoutError after `timeout` s, and gives it up."""
        return self._reset_wait(timeout)

    def step_async(self, actions: Any) -> None:
        """Begins what step() does."""
        self._step_async(actions)

    def step_wait(self, timeout: float | None = None) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Ends what step_async() began. Raises multiprocessing.TimeoutError after `timeout` s; that step is given up:
        the environments still finish it, its results are dropped, and the next call waits for that.
        """
        return self._step_wait(timeout)

    def send(self, actions: Any, env_ids: Iterable[int]) -> None:
        """Begins a step of these environments, whole groups, while others rest or are under way.

        actions: as for step(), the k-th for the k-th of `env_ids`.
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
        """Ends steps that send() began: of `env_ids`, or of what is ready as soon as `min_ready` environments are.

        Which environments are ready first depends on time, and so does what a policy learns from them. With `env_ids`
        (whole groups, in any order) results depend on seeds and actions alone. After a failure, the results of groups
        that are still under way are dropped.
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
        """Begins what call() does."""
        self._call_async(name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Ends what call_async() began. Raises multiprocessing.TimeoutError after `timeout` s."""
        return self._call_wait(timeout)

    def __del__(self) -> None:
        if not self.closed:
            self.close(terminate=True)


def _check_failure_options(
    num_workers: int | Literal["auto"], step_timeout_s: float | None, on_worker_failure: str, *, expects_failures: bool
) -> None:
    if on_worker_failure not in ("raise", "restart"):
        raise UserError(f'on_worker_failure must be "raise" or "restart", but got {on_worker_failure!r}.')
    if step_timeout_s is not None and not step_timeout_s > 0:
        raise UserError(f"step_timeout_s must be positive, or None for no limit, but got {step_timeout_s}.")
    if num_workers == 0 and expects_failures:
        raise UserError(
            "step_timeout_s and on_worker_failure='restart' need worker processes, but num_workers is 0; "
            "only processes can be stopped and started."
        )


def _check_factories(env_fns: Sequence[EnvFactory]) -> None:
    if not isinstance(env_fns, Sequence):
        raise UserError(
            f"env_fns must be a list of functions that make environments, but is a {type(env_fns).__name__}."
        )
    if not env_fns:
        raise UserError("env_fns must hold at least one factory, but is empty.")
    for env_fn in env_fns:
        if not callable(env_fn):
            raise UserError(
                "env_fns must hold functions that make environments, such as lambda: gymnasium.make(...), but holds a "
                f"{type(env_fn).__name__}."
            )


def _check_sizes(num_envs: int, num_workers: int | Literal["auto"], num_groups: int) -> None:
    if num_workers != "auto" and not (isinstance(num_workers, Integral) and num_workers >= 0):
        raise UserError(f'num_workers must be "auto", 0 (in this process) or more, but got {num_workers!r}.')
    if not 1 <= num_groups <= num_envs:
        raise UserError(f"num_groups must be from 1 to {num_envs}, the number of environments, but got {num_groups}.")
    if num_workers != "auto" and 0 < num_workers < num_groups:
        raise UserError(
            f"Each of num_groups={num_groups} groups needs a worker of its own, but num_workers is {num_workers}; pass "
            f'"auto", or {num_groups} or more.'
        )


def _division(
    num_workers: int | Literal["auto"], num_envs: int, num_groups: int, example: gymnasium.Env | None
) -> Division:
    """Who steps. example: to be measured where "auto" chooses; None: a worker per core is taken unmeasured."""
    if num_workers != "auto":
        return Division(min(num_workers, num_envs), steps_here=num_workers == 0)
    if example is None:
        return Division(min(num_envs, max(num_groups, int(usable_cores()))), steps_here=False)
    return _fastest(example, num_envs)


def _fastest(example: gymnasium.Env, num_envs: int) -> Division:
    watch = IdleWatch()
    cost = measure_step(example)
    free_cores = watch.free_cores()
    if free_cores < usable_cores() - _BUSY_CORES:  # only who is at work for longer counts
        watch = IdleWatch()
        time.sleep(_RECHECK_DELAY_S)
        free_cores = max(free_cores, watch.free_cores())
    return choose_division(cost, num_envs, free_cores, wake_s=measure_wake())


def _start_method(name: str | None) -> str:
    available = multiprocessing.get_all_start_methods()
    if name is None:
        return "forkserver" if sys.platform == "linux" else "spawn"
    if name not in available:
        raise UserError(f'start_method "{name}" does not exist here. {nearest(name, available)}')
    return name
