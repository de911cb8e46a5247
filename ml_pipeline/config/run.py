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
"""Our names for Stable-Baselines3's classes. SubprocVecEnv always uses workers; "parallel" may do without them."""
OnWorkerFailure = Literal["raise", "restart"]
Launcher = Literal["local", "ray"]
OF_LAUNCH = frozenset({"n_processes", "launcher", "max_restarts", "rank_timeout_s"})
"""Settings of where a run computes. They do not change results, so checkpoints and run folders do not store them."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Environments, length of training, device, seed, and when to save and evaluate.

    Exactly one of `iterations` and `total_timesteps` is set. Raises UserError where a value is out of range.

    >>> RunConfig(n_envs=8).iterations
    300
    """

    algorithm: Algorithm = OWN
    """Learning algorithm. PPO is built in; Stable-Baselines3 and sb3-contrib provide the others."""

    algorithm_kwargs: dict[str, Any] = field(default_factory=dict)
    """Additional arguments for an algorithm of Stable-Baselines3, as JSON such as '{"buffer_size": 50000}'."""

    env_id: str | None = None
    """Gymnasium environment to train in, such as CartPole-v1; none: train on a market."""

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment, as JSON such as '{"size": 8}'; in a file, as a mapping."""

    wrappers: tuple[str, ...] = ()
    """Wrappers around the environment, innermost first: module:Wrapper, or the name of a class in
    gymnasium.wrappers."""

    frame_stack: int | None = None
    """Number of latest observations that the policy receives together, usually 4; none: the latest only, or 4 with
    --atari."""

    atari: bool = False
    """Preprocess an Atari game as usual: repeat each action for 4 frames, and shrink images to 84 x 84 in grayscale. In
    training, also end the episode when a life is lost, and replace each reward by its sign."""

    n_envs: int = 1
    """Number of environments stepped in parallel, usually 4 to 64. With more environments, each update learns from
    more, and less correlated, data."""

    n_envs_schedule: dict[int, int] = field(default_factory=dict)
    """Pairs STEP:N, such as 100000:16 (in a file, a mapping), that change the number of environments during training:
    to N from the first iteration that begins at or after global step STEP; none: n_envs throughout."""

    vec_env: VecEnvKind = "parallel"
    """How environments are stepped. parallel: in worker processes; serial: one after another in the trainer's process;
    batched: all in one call, in trading (fastest for hundreds of environments; training episodes start at other random
    bars) and for Gymnasium environments registered with a vector_entry_point. SubprocVecEnv means parallel with one
    worker per core; DummyVecEnv means serial."""

    n_workers: int | Literal["auto", "dynamic"] = "auto"
    """Number of worker processes that step the environments. auto: measure at the start, and choose; dynamic: as auto,
    and measure again during training; 0: step them in the trainer's process. It affects speed, never results."""

    parallel_start_method: StartMethod | None = None
    """How worker processes are started; none: forkserver on Linux, spawn elsewhere."""

    step_timeout_s: float | None = None
    """Time limit for one step or reset, in seconds. A worker that exceeds it counts as failed; none: no limit."""

    on_worker_failure: OnWorkerFailure = "raise"
    """What to do if a worker process crashes, hangs or is killed: end the run (raise), or replace the worker and begin
    new episodes in its environments (restart)."""

    n_processes: int = 1
    """Number of processes that train one policy together, each with a part of the environments and its own workers;
    --launcher chooses where they run. Under torchrun, torchrun sets the number."""

    launcher: Launcher = "local"
    """Where the processes of --n-processes run: on this machine (local), or on a Ray cluster (ray)."""

    max_restarts: int = 3
    """How often training may restart from the last checkpoint because a process of --n-processes was lost; 0: never."""

    rank_timeout_s: float = 600.0
    """Seconds that the processes of --n-processes wait for the slowest one before they count it as lost. Must be longer
    than an evaluation takes."""

    iterations: int | None = 300
    """Length of training in iterations (one rollout and one update each). --num-episodes is an older name of this flag.
    With --n-envs-schedule, training takes iterations * n_envs * n_steps environment steps."""

    total_timesteps: int | None = None
    """Length of training in environment steps, summed over all environments and rounded up to whole iterations;
    replaces --iterations."""

    device: Device = "auto"
    """Device of the networks; auto: the CPU, which is fastest for perceptrons of the usual sizes. GPU code is
    experimental: one process was tested on one NVIDIA GPU."""

    seed: int = 0
    """Seed of all random numbers. Environment i is seeded with seed + i."""

    init_from: Path | None = None
    """Run folder or checkpoint from which a new run takes its first weights and its feature scaling; none: random
    weights."""

    checkpoint_dir: Path | None = None
    """Folder of this run; none: a new folder in checkpoints/."""

    checkpoint_interval: int = 10
    """Iterations between two checkpoints. With a smaller interval, less work is lost if the machine fails."""

    eval_interval: int = 25
    """Iterations between two evaluations, during which training waits. The checkpoint with the best score becomes
    best.pt."""

    eval_episodes: int = 10
    """Episodes per evaluation, on a single environment, usually 5 to 20. With more episodes, the score is less noisy,
    and evaluating takes longer."""

    stop_at_return: float | None = None
    """Mean return of the last 100 training episodes that ends the training early; none: do not stop early."""

    stop_on_plateau: int | None = None
    """Stop training if the mean return of the last 100 training episodes has not risen for this many iterations, such
    as 50; none: do not stop early."""

    callback: tuple[str, ...] = ()
    """Your own classes whose methods the trainer calls at moments of every iteration, as module:Class: before_rollout,
    after_episode, after_rollout, after_iteration or after_evaluation. They may change the environments and settings."""

    tensorboard: bool = False
    """Write event files for TensorBoard."""

    tensorboard_dir: Path | None = None
    """Folder for TensorBoard's event files, with one subfolder per run; implies --tensorboard. none: tensorboard/ in
    the run folder."""

    wandb: str | None = None
    """Project of Weights & Biases to log to (with WANDB_MODE=offline, only to the local disk); none: no logging."""

    sink: tuple[str, ...] = ()
    """Your own classes that receive the metrics of every iteration (sinks), as module:Class."""

    def __post_init__(self) -> None:
        self._check_algorithm()
        self._check_environment()
        for setting, example in (("sink", "mine:MySink"), ("callback", "mine:Curriculum")):
            for name in getattr(self, setting):
                if not all(name.partition(":")[::2]):
                    raise UserError(f'{setting} must be module:Class, such as {example}, but got "{name}".')
        check_schedule(self.n_envs_schedule)
        for name in ("n_envs", "checkpoint_interval", "eval_interval", "eval_episodes"):
            check_count(name, getattr(self, name))
        for name in ("iterations", "total_timesteps", "stop_on_plateau"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if (self.iterations is None) == (self.total_timesteps is None):
            both_or_none = "none" if self.iterations is None else "both"
            raise UserError(f"One of iterations and total_timesteps must be set, but got {both_or_none}.")
        self._check_workers()
        self._check_processes()
        if self.parallel_start_method is not None:
            check_choice("parallel_start_method", self.parallel_start_method, multiprocessing.get_all_start_methods())
        check_choice("device", self.device, get_args(Device))
        check_count("seed", self.seed, minimum=0)
        check_within("seed", self.seed, 0, 2**32 - 1)  # the range that every generator accepts

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
        if self.n_processes > 1 and self.vec_env == "batched" and self.env_id is not None:
            raise UserError(
                f'vec_env "batched" makes one vector environment of {self.env_id}, which cannot be divided, but '
                f'n_processes is {self.n_processes}; use "parallel", or one process.'
            )
        if self.n_processes > 1 and self.algorithm != OWN:
            raise UserError(
                f"n_processes is for {OWN}, but algorithm is {self.algorithm}, which trains in one process; use one "
                "of them."
            )

    def _check_workers(self) -> None:
        if self.n_workers != "auto" and self.n_workers != "dynamic":  # noqa: PLR1714 - mypy narrows only this form
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
                f'vec_env "{self.vec_env}" has no workers, but n_workers is {self.n_workers}; use one of them.'
            )
        check_choice("on_worker_failure", self.on_worker_failure, get_args(OnWorkerFailure))
        if self.step_timeout_s is not None:
            check_positive("step_timeout_s", self.step_timeout_s)
        if self.step_timeout_s is not None or self.on_worker_failure == "restart":
            self._check_workers_may_fail()

    def _take_own_name(self) -> None:
        """Replace a name of Stable-Baselines3 by ours; SubprocVecEnv then always gets workers."""
        if self.vec_env == "SubprocVecEnv" and self.n_workers == 0:
            raise UserError('vec_env "SubprocVecEnv" steps in workers, but n_workers is 0; use one of them.')
        if self.vec_env == "SubprocVecEnv" and self.n_workers == "auto":
            object.__setattr__(self, "n_workers", self.n_envs)  # `train_config` limits it to the number of cores
        object.__setattr__(self, "vec_env", OWN_VEC_ENVS.get(self.vec_env, self.vec_env))

    def _check_workers_may_fail(self) -> None:
        name = "on_worker_failure" if self.step_timeout_s is None else "step_timeout_s"
        if self.vec_env != "parallel" or self.n_workers == 0:
            steps_here = "n_workers is 0" if self.vec_env == "parallel" else f'vec_env is "{self.vec_env}"'
            raise UserError(f"{name} is about worker processes, but {steps_here}; use one of them.")

    def n_envs_at(self, step: int) -> int:
        """The number of environments of an iteration that begins at this global step."""
        return n_envs_at(step, first=self.n_envs, schedule=self.n_envs_schedule)

    def timesteps(self, n_steps: int) -> int:
        """How long training is, over all environments, where an episode is `n_steps` in each.

        >>> RunConfig(n_envs=8, iterations=49).timesteps(n_steps=256)
        100352
        """
        if self.total_timesteps is None:
            assert self.iterations is not None
            return self.iterations * self.n_envs * n_steps
        return self.total_timesteps
