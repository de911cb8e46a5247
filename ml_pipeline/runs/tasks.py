"""Tasks: their contract, their fingerprint, and the task, environments and trainer for the settings."""

import hashlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.monitoring.sinks import MetricsSink
from ml_pipeline.runs.environments.ids import import_module_of
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.task import TradingTask

if TYPE_CHECKING:
    from ml_pipeline.models.rl.algorithms.trainer import Trainer
    from ml_pipeline.runs.ranks.context import RankContext


class Task(Protocol):
    """What a run learns: `GymTask`, `TradingTask` or a custom class."""

    name: str
    """Names the run folder."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the user about findings in the data."""

    def train_env_fns(self, n: int) -> Sequence[Callable[[], gymnasium.Env]]:
        """Functions that make n environments to train in."""

    def batched_train_env(self, n: int, *, device: str | None = None) -> VectorEnv:
        """The n environments as one, of device tensors or of arrays, for vec_env "batched"."""

    def score(self, act: Callable[[Any], Any]) -> float:
        """Score a policy during training, on data held out from training; higher is better."""

    def report(self, act: Callable[[Any], Any], folder: Path) -> str:
        """Evaluate a trained policy: write files such as evaluation.json into `folder`, and return the
        text to print."""

    def state(self) -> dict[str, Any]:
        """Data besides the weights that the policy needs, for the checkpoint."""


def make_task(config: TrainConfig) -> GymTask | TradingTask:
    """A Gymnasium task if the settings name an environment, else trading.

    Raises UserError if the environment or the market is unusable.
    """
    run = config.run
    if run.env_id is not None:
        return GymTask.of(run)
    if run.init_from is not None:
        from ml_pipeline.runs.initial_policy import trading_task_as_begun  # reads a checkpoint, with torch

        return trading_task_as_begun(config)
    return TradingTask(config.trading, run.seed)


def make_envs(
    config: TrainConfig,
    task: Task,
    *,
    n_envs: int | None = None,
    n_workers: int | Literal["auto"] | None = None,
    rows: slice = slice(None),
) -> VectorEnv:
    """The environments to train in, of type `RunConfig.vec_env`. n_envs, n_workers: override those of `config`.

    rows: the indices of the environments to make, those of one rank. n_workers: per rank, at most one per environment.
    """
    run = config.run
    n_envs = run.n_envs if n_envs is None else n_envs
    chosen = run.n_workers if n_workers is None else n_workers
    if run.vec_env == "batched":
        from ml_pipeline.models.rl.policies.threads_and_device import choose_device  # with torch

        # On a CPU, compiled arrays train 1.8 times as fast as tensors (4,096 environments, benchmarks/gpu.py).
        device = None if run.device in {"auto", "cpu"} else choose_device(run.device)
        return task.batched_train_env(len(range(n_envs)[rows]), device=device)
    env_fns = task.train_env_fns(n_envs)[rows]
    if isinstance(chosen, int):
        chosen = min(chosen, len(env_fns))
    return ParallelEnv(
        env_fns,
        num_workers=0 if run.vec_env == "serial" else "auto" if chosen == "dynamic" else chosen,
        start_method=run.parallel_start_method,
        step_timeout_s=run.step_timeout_s,
        on_worker_failure=run.on_worker_failure,
        copy=run.algorithm != OWN,  # our trainer copies what it stores
    )


def make_trainer(
    config: TrainConfig, envs: VectorEnv, *, device: str, sink: MetricsSink, ranks: "RankContext"
) -> "Trainer":
    """The trainer of the algorithm in the settings. Raises UserError if the environments do not fit it.

    ranks: the ranks that train together, each on its own environments.
    """
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer  # with torch
    from ml_pipeline.models.rl.algorithms.trainer_envs import require_same_step
    from ml_pipeline.models.rl.policies.policy import Policy

    run = config.run
    if run.algorithm == OWN:
        spaces = envs.single_observation_space, envs.single_action_space
        policy = Policy(*spaces, config.ppo, seed=run.seed, device=device)
        length, group = config.timesteps, ranks.group
        return PPOTrainer(
            envs, config.ppo, total_timesteps=length, policy=policy, seed=run.seed, sink=sink, ranks=group
        )
    if ranks.size > 1:
        raise UserError(f"{run.algorithm} trains in one process; leave out the other ranks, or train with {OWN}.")
    from ml_pipeline.runs.sb3.trainer import SB3Trainer

    if not isinstance(envs, ParallelEnv):
        raise UserError(
            f"{run.algorithm} trains in a ParallelEnv, but got a {type(envs).__name__}; make the environments with "
            "ParallelEnv(env_fns, num_workers=0), which steps them in this process."
        )
    require_same_step(envs, run.algorithm)
    return SB3Trainer(envs, run, config.ppo, device=device, sink=sink)


def describe_task(task: Task) -> dict[str, Any]:
    """The kind of task and a fingerprint of its data or code, to compare across machines."""
    if isinstance(task, TradingTask):
        if task.config.per_symbol:
            each = {symbol: account.fingerprint for symbol, account in task.accounts.items()}
            return {"kind": "trading, one account per symbol", "symbols": [*task.symbols], "data": each}
        bars, (data,) = task.account.market.n_bars, task.fingerprints
        return {"kind": "trading", "symbols": [*task.symbols], "bars": bars, "data": data}
    if isinstance(task, GymTask):
        return {"kind": "Gymnasium", "environment": task.env_id, "code": describe_environment(task.env_id)}
    return {"kind": f"{type(task).__module__}.{type(task).__qualname__}", "name": task.name}


def describe_environment(env_id: str) -> str:
    """The origin of a Gymnasium environment's code: package and version, or a fingerprint of its module.

    Raises UserError if the module in the id cannot be imported.
    """
    import_module_of(env_id)  # registers it: else it would look like Gymnasium's own until first made
    module = _module_of(env_id)
    if module is None:
        return f"gymnasium {gymnasium.__version__}"
    package = module.partition(".")[0]
    for distribution in _distributions().get(package, ()):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    try:
        found = importlib.util.find_spec(module)
        content = Path(str(found and found.origin)).read_bytes()
    except (ImportError, OSError, ValueError):
        return module
    return f"{module}, {hashlib.blake2b(content, digest_size=8).hexdigest()}"


@cache
def _distributions() -> Mapping[str, list[str]]:
    """The distributions of each package; cached, because reading all installed ones takes a second."""
    return importlib.metadata.packages_distributions()


def _module_of(env_id: str) -> str | None:
    try:
        entry_point = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    except gymnasium.error.Error:
        return None
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    found = inspect.getmodule(entry_point)
    return None if found is None else found.__name__
