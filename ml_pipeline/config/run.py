"""The settings of a run besides those of its algorithm and its market: `RunConfig`."""

import multiprocessing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ml_pipeline.config.algorithms import ALGORITHMS, OWN, Algorithm
from ml_pipeline.config.checks import check_choice, check_count, check_positive, check_within
from ml_pipeline.config.env_schedule import check_schedule, n_envs_at
from ml_pipeline.config.errors import UserError

StartMethod = Literal["spawn", "fork", "forkserver"]
Device = Literal["auto", "cpu", "cuda", "mps"]
VecEnvKind = Literal["parallel", "serial", "batched", "SubprocVecEnv", "DummyVecEnv"]
OWN_VEC_ENVS = {"SubprocVecEnv": "parallel", "DummyVecEnv": "serial"}
"""What the names of Stable-Baselines3 are here. SubprocVecEnv always has workers, where parallel may do without."""
OnWorkerFailure = Literal["raise", "restart"]
Launcher = Literal["local", "ray"]
OF_LAUNCH = frozenset({"n_processes", "launcher", "max_restarts", "rank_timeout_s"})
"""Settings of who computes, with which nothing of a run changes: no checkpoint holds them, and no run keeps them."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Environments, length of training, device, seed, and when to save and evaluate.

    Exactly one of `num_episodes` and `total_timesteps` is set. Raises UserError where a value is out of range.

    >>> RunConfig(n_envs=8).num_episodes
    300
    """

    algorithm: Algorithm = OWN
    """What trains the policy: PPO is this program's own, the others are those of Stable-Baselines3 and sb3-contrib."""

    algorithm_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of an algorithm of Stable-Baselines3, as JSON such as '{"buffer_size": 50000}'."""

    env_id: str | None = None
    """Any Gymnasium environment, such as CartPole-v1; none: trading."""

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as JSON such as '{"size": 8}', or in a file as a mapping."""

    wrappers: tuple[str, ...] = ()
    """Wrappers of the environment, innermost first: module:Wrapper, or one of gymnasium.wrappers by its name alone."""

    frame_stack: int | None = None
    """Number of last observations that make up one; none: 1, or 4 of an Atari game."""

    atari: bool = False
    """Preprocess an Atari game as usual: frames skipped, grayscale 84 x 84, and in training lives as episodes and
    rewards as signs."""

    n_envs: int = 1
    """Number of environments that are stepped in parallel."""

    n_envs_schedule: dict[int, int] = field(default_factory=dict)
    """Other numbers of environments by global step, as STEP:N, or in a file as a mapping: each holds from the first
    iteration that begins at or after its step; none: n_envs all along."""

    vec_env: VecEnvKind = "parallel"
    """How environments are stepped: by worker processes (parallel), one after another in the trainer's process
    (serial), or for trading all in one call (batched: fastest for hundreds of them; its random starts differ).
    SubprocVecEnv: by a worker per core; DummyVecEnv: serial."""

    n_workers: int | Literal["auto", "dynamic"] = "auto"
    """Worker processes that share the environments; auto measures, 0 steps them in the trainer's process, dynamic
    measures again and again while the run goes on."""

    parallel_start_method: StartMethod | None = None
    """How workers are started; none: forkserver on Linux, spawn elsewhere."""

    step_timeout_s: float | None = None
    """Longest time for a step or a reset, in seconds; a worker that takes longer has failed. none: no limit."""

    on_worker_failure: OnWorkerFailure = "raise"
    """What to do when a worker is killed, crashes or hangs: end the run (raise), or start another worker, with new
    episodes of its environments (restart)."""

    n_processes: int = 1
    """Processes that share the environments, each with workers of its own, and train alike: on this machine, or where
    the launcher places them. Under torchrun, its number counts."""

    launcher: Launcher = "local"
    """What starts the processes of --n-processes: this program on this machine (local), or a Ray cluster (ray)."""

    max_restarts: int = 3
    """How often all processes of --n-processes start again from the last checkpoint because one was lost."""

    rank_timeout_s: float = 600.0
    """Longest time that the processes wait for the slowest of them, in seconds; one that takes longer is lost."""

    num_episodes: int | None = 300
    """Number of iterations, each of one rollout and one update; with --n-envs-schedule, training takes the steps of so
    many iterations of n_envs environments."""

    total_timesteps: int | None = None
    """Environment steps to train for, in place of --num-episodes; rounded up to whole iterations."""

    device: Device = "auto"
    """Device of the networks; auto takes the fastest one here."""

    seed: int = 0
    """Seed of everything random: environment i is seeded with seed + i."""

    init_from: Path | None = None
    """Run folder or checkpoint whose weights, and scaling of features, a new run begins with; none: random weights."""

    checkpoint_dir: Path | None = None
    """Folder of this run; none: a new one in checkpoints/."""

    checkpoint_interval: int = 10
    """Number of iterations between two checkpoints."""

    eval_interval: int = 25
    """Number of iterations between two evaluations."""

    eval_episodes: int = 10
    """Number of episodes in an evaluation, on a single environment."""

    stop_at_return: float | None = None
    """Mean return of the last 100 training episodes at which training ends early; none: never."""

    stop_on_plateau: int | None = None
    """Number of iterations without a rise of that mean after which training ends early; none: never."""

    tensorboard: bool = False
    """Write event files for TensorBoard."""

    tensorboard_dir: Path | None = None
    """Folder in which the event files of each run have a folder of its name, which implies --tensorboard; none:
    tensorboard/ in the run folder."""

    wandb: str | None = None
    """Project of Weights & Biases to write to; with WANDB_MODE=offline on this disk alone. none: do not."""

    sink: tuple[str, ...] = ()
    """Sinks of your own, as module:Class, which take the metrics of each iteration."""

    def __post_init__(self) -> None:
        self._check_algorithm()
        self._check_environment()
        for name in self.sink:
            if not all(name.partition(":")[::2]):
                raise UserError(f'sink must be module:Class, such as mine:MySink, but got "{name}".')
        check_schedule(self.n_envs_schedule)
        for name in ("n_envs", "checkpoint_interval", "eval_interval", "eval_episodes"):
            check_count(name, getattr(self, name))
        for name in ("num_episodes", "total_timesteps", "stop_on_plateau"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if (self.num_episodes is None) == (self.total_timesteps is None):
            both_or_none = "none" if self.num_episodes is None else "both"
            raise UserError(f"One of num_episodes and total_timesteps must be set, but got {both_or_none}.")
        self._check_workers()
        self._check_processes()
        if self.parallel_start_method is not None:
            check_choice("parallel_start_method", self.parallel_start_method, multiprocessing.get_all_start_methods())
        check_choice("device", self.device, get_args(Device))
        check_count("seed", self.seed, minimum=0)
        check_within("seed", self.seed, 0, 2**32 - 1)  # what every generator takes

    def _check_algorithm(self) -> None:
        check_choice("algorithm", self.algorithm, tuple(ALGORITHMS))
        if self.algorithm_kwargs and self.algorithm == OWN:
            raise UserError(
                f"algorithm_kwargs are for the algorithms of Stable-Baselines3, but algorithm is {OWN}, whose settings "
                "have names of their own; leave them out, or name another algorithm such as DQN."
            )

    def _check_environment(self) -> None:
        if self.frame_stack is not None:
            check_count("frame_stack", self.frame_stack, minimum=2)
        for name in ("env_kwargs", "wrappers", "frame_stack", "atari"):
            if getattr(self, name) and self.env_id is None:
                raise UserError(
                    f"{name} is about a Gymnasium environment, but env_id is none; name one, or leave it out."
                )

    def _check_processes(self) -> None:
        check_count("n_processes", self.n_processes)
        check_choice("launcher", self.launcher, get_args(Launcher))
        check_count("max_restarts", self.max_restarts, minimum=0)
        check_positive("rank_timeout_s", self.rank_timeout_s)
        fewest = min([self.n_envs, *self.n_envs_schedule.values()])
        if self.n_processes > fewest:
            raise UserError(
                f"n_processes must be at most n_envs = {fewest}, so that each has an environment, but got "
                f"{self.n_processes}; raise n_envs (a multiple of {self.n_processes} gives all as many), or lower "
                "n_processes."
            )
        if self.n_processes > 1 and self.algorithm != OWN:
            raise UserError(
                f"n_processes is for {OWN}, but algorithm is {self.algorithm}, which trains in one process; leave one "
                "of the two out."
            )

    def _check_workers(self) -> None:
        if self.n_workers != "auto" and self.n_workers != "dynamic":  # noqa: PLR1714 - mypy follows this one alone
            check_count("n_workers", self.n_workers, minimum=0)
            most = max(self.n_envs, *self.n_envs_schedule.values(), 0)
            if self.n_workers > most:
                raise UserError(
                    f"n_workers must be at most n_envs = {most}, but got {self.n_workers}; "
                    f"lower it to {most}, or leave it to auto."
                )
        check_choice("vec_env", self.vec_env, get_args(VecEnvKind))
        self._take_own_name()
        if self.vec_env != "parallel" and self.n_workers not in {"auto", 0}:
            raise UserError(
                f'vec_env "{self.vec_env}" has no workers, but n_workers is {self.n_workers}; leave one of the two out.'
            )
        check_choice("on_worker_failure", self.on_worker_failure, get_args(OnWorkerFailure))
        if self.step_timeout_s is not None:
            check_positive("step_timeout_s", self.step_timeout_s)
        if self.step_timeout_s is not None or self.on_worker_failure == "restart":
            self._check_workers_may_fail()

    def _take_own_name(self) -> None:
        """Replace a name of Stable-Baselines3 by ours, with workers in any case if it promises them."""
        if self.vec_env == "SubprocVecEnv" and self.n_workers == 0:
            raise UserError('vec_env "SubprocVecEnv" steps in workers, but n_workers is 0; leave one of the two out.')
        if self.vec_env == "SubprocVecEnv" and self.n_workers == "auto":
            object.__setattr__(self, "n_workers", self.n_envs)  # `train_config` takes no more than cores
        object.__setattr__(self, "vec_env", OWN_VEC_ENVS.get(self.vec_env, self.vec_env))

    def _check_workers_may_fail(self) -> None:
        name = "on_worker_failure" if self.step_timeout_s is None else "step_timeout_s"
        if self.vec_env != "parallel" or self.n_workers == 0:
            steps_here = "n_workers is 0" if self.vec_env == "parallel" else f'vec_env is "{self.vec_env}"'
            raise UserError(f"{name} is about worker processes, but {steps_here}; leave one of the two out.")

    def n_envs_at(self, step: int) -> int:
        """The number of environments of an iteration that begins at this global step."""
        return n_envs_at(step, first=self.n_envs, schedule=self.n_envs_schedule)

    def timesteps(self, n_steps: int) -> int:
        """How long training is, over all environments, where an episode is `n_steps` in each.

        >>> RunConfig(n_envs=8, num_episodes=49).timesteps(n_steps=256)
        100352
        """
        if self.total_timesteps is None:
            assert self.num_episodes is not None
            return self.num_episodes * self.n_envs * n_steps
        return self.total_timesteps
