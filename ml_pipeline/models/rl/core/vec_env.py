"""`ParallelEnv`: environments stepped by worker processes, with the results of stepping them one after another."""

import multiprocessing
import sys
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.models.rl.core.batch import BatchLayout
from ml_pipeline.models.rl.core.cores import usable_cores
from ml_pipeline.models.rl.core.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.local_crew import LocalCrew
from ml_pipeline.models.rl.core.observation_mode import ObservationMode, check_observation_mode
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.core.shared_crew import SharedCrew
from ml_pipeline.models.rl.core.vec_base import BlockVectorEnv
from ml_pipeline.models.rl.core.worker_choice import HERE, Division, choose_division, measure_step, measure_wake
from ml_pipeline.models.rl.core.worker_pool import WorkerPool

__all__ = ["ParallelEnv", "SerialEnv"]

StartMethod = Literal["spawn", "fork", "forkserver"]

_SPIN_S = 2e-4  # long enough for a small policy to answer; the update and all else that is longer is slept through


class ParallelEnv(BlockVectorEnv):
    """A `gymnasium.vector.VectorEnv` over worker processes, each of which owns a block of the environments.

    env_fns: functions that make the environments; lambdas and closures will do.
    num_workers: "auto" measures a step for at most half a second and takes what will be fastest: this process, workers,
    or workers beside this process, which then steps a share itself; or a worker a processor where steps are expected
    to hang or kill (the last two arguments). 0 steps in this process. Never changes results.
    start_method: default "forkserver" on Linux, "spawn" elsewhere.
    autoreset_mode: one of Gymnasium's three.
    copy: whether step() and reset() return observations of their own, or views that are valid until the next call.
    step_timeout_s: a step (with the resets in it) or a reset() that takes longer raises StepTimeoutError; so does the
    start of a worker that takes a minute longer than that. Needs workers.
    on_worker_failure: where a worker is killed, crashes or is stuck, "raise" raises WorkerFailedError, and closes.
    "restart" starts another in its place: a step then reports the episodes of its environments as truncated where they
    were last seen, with reward 0 and the info "worker_restarted", and new episodes begin with new seeds. Attributes
    that were set are as the factory left them. What keeps failing is raised in the end. Needs workers.

    observation_mode: as in Gymnasium; "different" lets observation spaces differ in all but shape and dtype, a tuple of
    the batch's space and the single one as well.

    Environment i is seeded seed + i, whichever worker owns it. What can be raised is drawn in `vec_errors`. After a
    worker failed this object is closed; after an environment failed it is whole, and waits for a reset().

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
    ) -> None:
        if not env_fns:
            raise UserError("env_fns must hold at least one factory, but is empty.")
        if on_worker_failure not in ("raise", "restart"):
            raise UserError(f'on_worker_failure must be "raise" or "restart", but got {on_worker_failure!r}.')
        if step_timeout_s is not None and not step_timeout_s > 0:
            raise UserError(f"step_timeout_s must be positive, or None for no limit, but got {step_timeout_s}.")
        if num_workers != "auto" and num_workers < 0:
            raise UserError(f'num_workers must be "auto", 0 (in this process) or more, but got {num_workers}.')
        needs_workers = step_timeout_s is not None or on_worker_failure == "restart"
        if num_workers == 0 and needs_workers:
            raise UserError(
                "step_timeout_s and on_worker_failure='restart' need worker processes, but num_workers is 0; "
                "only processes can be stopped and started."
            )
        check_observation_mode(observation_mode)
        method = _start_method(start_method)
        mode = AutoresetMode(autoreset_mode)
        self._start_method: str | None = None
        self._pool: WorkerPool | None = None
        if num_workers == 0:
            self._begin_here(env_fns, mode, copy=copy, observation_mode=observation_mode)
            return
        example = EnvBlock(env_fns[:1], 0, len(env_fns), mode).envs[0]
        try:
            if num_workers == "auto":
                # Whoever expects steps that hang or kill does not want to see one here.
                division = _workers_only(len(env_fns)) if needs_workers else _fastest(example, len(env_fns))
            else:
                division = Division(min(num_workers, len(env_fns)), steps_here=False)
            if division == HERE:
                self._begin_here(env_fns, mode, copy=copy, observation_mode=observation_mode)
                return
            blocks = division.blocks(len(env_fns))
            layout = BatchLayout(len(env_fns), example.observation_space, example.action_space, mode, len(blocks))
            self._pool = WorkerPool(
                env_fns,
                layout,
                method,
                blocks=blocks[1:] if division.steps_here else blocks,
                spin_s=_SPIN_S if division.n_workers + 1 <= usable_cores() else 0.0,
                step_timeout_s=step_timeout_s,
                on_failure=on_worker_failure,
            )
            self._start_method = method
            self._division = division
            crew = self._share(env_fns[: len(blocks[0])], layout) if division.steps_here else self._pool
            self._begin(example, layout, crew, copy=copy, observation_mode=observation_mode)
        finally:
            example.close()

    def _begin_here(self, env_fns: Sequence[EnvFactory], mode: AutoresetMode, **options: Any) -> None:
        local = LocalCrew.of_all(env_fns, mode)
        self._division = HERE
        self._begin(local.envs[0], local.layout, local, **options)

    def _share(self, env_fns: Sequence[EnvFactory], layout: BatchLayout) -> SharedCrew:
        assert self._pool is not None
        try:
            block = EnvBlock(env_fns, 0, layout.num_envs, layout.autoreset_mode)
        except BaseException:
            self._pool.close(terminate=True)
            raise
        return SharedCrew(LocalCrew(block, layout, self._pool.batch), self._pool)

    @property
    def num_workers(self) -> int:
        """How many worker processes step environments; 0: this process steps all."""
        return self._division.n_workers

    @property
    def steps_here(self) -> bool:
        """Whether this process steps environments: all where there are no workers, or, chosen by "auto", a share."""
        return self._division.steps_here

    @property
    def start_method(self) -> str | None:
        """How the workers were started; None where there are none."""
        return self._start_method

    @property
    def num_restarts(self) -> int:
        """How many failed workers were replaced so far."""
        return 0 if self._pool is None else self._pool.num_restarts

    @property
    def waited_s(self) -> float:
        """How long this process has waited for workers, all in all."""
        return 0.0 if self._pool is None else self._pool.waited_s

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

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begins what call() does."""
        self._call_async(name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Ends what call_async() began. Raises multiprocessing.TimeoutError after `timeout` s."""
        return self._call_wait(timeout)

    def __del__(self) -> None:
        if not self.closed:
            self.close(terminate=True)


def _workers_only(num_envs: int) -> Division:
    return Division(min(num_envs, max(1, int(usable_cores()))), steps_here=False)


def _fastest(example: gymnasium.Env, num_envs: int) -> Division:
    return choose_division(measure_step(example), num_envs, usable_cores(), wake_s=measure_wake())


def _start_method(name: str | None) -> str:
    available = multiprocessing.get_all_start_methods()
    if name is None:
        return "forkserver" if sys.platform == "linux" else "spawn"
    if name not in available:
        raise UserError(f'start_method "{name}" does not exist here. {nearest(name, available)}')
    return name
