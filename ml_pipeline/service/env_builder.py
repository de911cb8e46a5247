"""Build the environments of one policy from symbols and a folder of market files, and choose their number.

`build_vec_env` assigns environments to symbols in turn: environment i trades symbol i mod k, with its own account. If
workers cannot start or memory is short, the environments run in this process, with one warning; results do not change.

If no number is given, `choose_n_envs` derives one from the cost of a step, the symbols, the cores and the memory. More
environments share one evaluation of the policy and use more cores; beyond some number throughput no longer improves and
rollouts only grow. The chosen number depends on the machine, and results depend on it: pass it to repeat a run.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.jobs.budget import free_memory_bytes
from ml_pipeline.models.rl.core.stepping.errors import FactoryNotPicklableError, WorkerFailedError
from ml_pipeline.models.rl.core.workers.choice import StepCost, choose_division, expected_speedup, measure_step
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.service.agent_config import DEFAULT_MONITOR, AgentConfig, agent_config
from ml_pipeline.service.trading_vec_env import BatchedTradingVecEnv, BuiltFrom, EpisodeMonitor, TradingVecEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.episode_figures import EpisodeFiguresEnv
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets

Config = Mapping[str, Any] | str | Path | TrainConfig | AgentConfig
# Errors at the start of workers if the system has no processes, descriptors or shared memory left. multiprocessing
# raises AssertionError in a daemonic process, which may not have children.
_NO_WORKERS = (WorkerFailedError, FactoryNotPicklableError, OSError, AssertionError)


@dataclass(frozen=True)
class EnvCount:
    """A number of environments, and the reason for it."""

    n_envs: int
    reason: str


def build_vec_env(  # noqa: PLR0917  # as its users know it
    symbols: Sequence[str],
    data_dir: str | Path | None,
    config: Config,
    n_envs: int | None = None,
    monitor_path: str | Path | None = DEFAULT_MONITOR,
    use_shared_memory: bool = True,
    logger: logging.Logger | None = None,
) -> TradingVecEnv | BatchedTradingVecEnv:
    """Environments that trade these symbols in turn, as a `gymnasium.vector.VectorEnv`.

    symbols: at least one; each has a file in `data_dir`, see `market.symbol_files`. data_dir: a folder, or one file
    with all symbols; None: the built-in market, whose symbol is SYNTH.
    config: as for `TrainerAgent`. n_envs: None takes the number of the configuration, or else measures a step and
    chooses within the limit, the cores and the free memory; the reason is logged.
    monitor_path: file of episode statistics, see `trading_vec_env`; None writes no file.
    use_shared_memory: True returns observations as views of shared memory, valid until the next step; False copies
    them, so the caller may keep them.
    logger: gets the chosen number and warnings; without one, warnings use the `warnings` module.

    Raises UserError if a symbol has no file, the number of environments exceeds max_concurrent_envs or is below the
    number of symbols, files are incompatible, or a setting is unknown or has the wrong type.
    """
    _check_types(monitor_path, use_shared_memory, logger)
    agent = agent_config(config)
    if n_envs is not None:
        _check_count(n_envs)
        agent.vectorized.require_allowed(n_envs)
    task = TradingTask(_dealt(agent, symbols, data_dir).train.trading, agent.train.run.seed)
    said = logger or logging.getLogger(__name__)
    for notice in task.notices:
        said.warning("%s", notice)
    if n_envs is None and agent.n_envs is not None:
        n_envs = agent.n_envs
        agent.vectorized.require_allowed(n_envs)
    if n_envs is None:
        choice = _count_for(task, agent)
        said.info("%s", choice.reason)
        n_envs = choice.n_envs
    agent = _dealt(agent, symbols, data_dir).with_settings(n_envs=n_envs, **agent.vectorized.settings())
    built_from = BuiltFrom(task, agent.train)
    if agent.train.run.vec_env == "batched":
        envs = task.batched_train_env(n_envs, env_class=BatchedTradingVecEnv)
        assert isinstance(envs, BatchedTradingVecEnv)
        return envs.attach(built_from, _monitor(monitor_path, task))
    env_fns = task.train_env_fns(n_envs, env_class=FastTradingEnv if monitor_path is None else EpisodeFiguresEnv)
    monitor = _monitor(monitor_path, task)
    try:
        return _stepped(env_fns, built_from, monitor, copy=not use_shared_memory, logger=logger)
    except BaseException:
        if monitor is not None:
            monitor.close()
        raise


def get_optimal_n_envs(symbols: Sequence[str], data_dir: str | Path | None = None, config: Config | None = None) -> int:
    """The number of environments that `build_vec_env` would choose for these symbols on this machine now.

    Without data_dir, a step of the built-in market is measured, which costs about the same. Raises UserError as
    `build_vec_env` does.
    """
    agent = agent_config({} if config is None else config)
    _check_symbols(symbols)
    if data_dir is None and agent.train.trading.data is None:
        trading = replace(agent.train.trading, symbols=(), per_symbol=True)
        task = TradingTask(trading, accounts=traded_markets(trading, {"SYNTH": synthetic_market()}))
        return _count_for(task, agent, n_symbols=len(symbols)).n_envs
    data_dir = agent.train.trading.data if data_dir is None else data_dir
    return _count_for(TradingTask(_dealt(agent, symbols, data_dir).train.trading), agent).n_envs


def _dealt(agent: AgentConfig, symbols: Sequence[str], data_dir: str | Path | None) -> AgentConfig:
    """The configuration with these symbols, one account per symbol."""
    _check_symbols(symbols)
    if data_dir is not None and not _is_path(data_dir):
        raise UserError(f"data_dir must be the path of a folder, or None, but got {data_dir!r}.")
    data = None if data_dir is None else Path(data_dir).expanduser().absolute()
    trading = replace(agent.train.trading, data=data, symbols=tuple(symbols), per_symbol=True)
    return replace(agent, train=replace(agent.train, trading=trading))


def _check_symbols(symbols: Any) -> None:
    if isinstance(symbols, str) or not isinstance(symbols, Sequence):
        raise UserError(f'symbols must be a list such as ["EURUSD"], but got {symbols!r}.')
    if not symbols:
        raise UserError('symbols must be at least one symbol, such as ["EURUSD"], but got none.')
    for symbol in symbols:
        if not isinstance(symbol, str):
            raise UserError(f"A symbol must be a text such as EURUSD, but got {symbol!r}.")


def _check_types(monitor_path: Any, use_shared_memory: Any, logger: Any) -> None:
    if monitor_path is not None and not _is_path(monitor_path):
        raise UserError(f"monitor_path must be the path of a file, or None for none, but got {monitor_path!r}.")
    if not isinstance(use_shared_memory, bool):
        raise UserError(f"use_shared_memory must be True or False, but got {use_shared_memory!r}.")
    if logger is not None and not isinstance(logger, logging.Logger | logging.LoggerAdapter):
        raise UserError(f"logger must be a logging.Logger, or None, but got {logger!r}.")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path) and bool(str(value)) and "\0" not in str(value)


def _check_count(n_envs: Any) -> None:
    if isinstance(n_envs, bool) or not isinstance(n_envs, int) or n_envs < 1:
        raise UserError(f"n_envs must be a whole number of at least 1, or None to measure, but got {n_envs!r}.")


def _count_for(task: TradingTask, agent: AgentConfig, n_symbols: int | None = None) -> EnvCount:
    with closing(task.train_env_fns(len(task.accounts))[0]()) as env:
        cost = measure_step(env)
        assert isinstance(env.observation_space, spaces.Box)
        floats = agent.train.ppo.n_steps * int(np.prod(env.observation_space.shape))
    return choose_n_envs(
        n_symbols or len(task.accounts),
        cost,
        most=agent.vectorized.max_concurrent_envs,
        cores=usable_cores(),
        free_bytes=free_memory_bytes(),
        bytes_each=3 * 4 * floats,  # float32, in the rollout, its minibatches and their gradients
    )


def _monitor(path: str | Path | None, task: TradingTask) -> EpisodeMonitor | None:
    return None if path is None else EpisodeMonitor(path, ", ".join(task.symbols))


def _stepped(
    env_fns: Sequence[Any],
    built_from: BuiltFrom,
    monitor: EpisodeMonitor | None,
    *,
    copy: bool,
    logger: logging.Logger | None,
) -> TradingVecEnv:
    """The environments as configured or, with a warning, in this process."""
    run = built_from.config.run
    chosen: int | Literal["auto"] = "auto" if run.n_workers == "dynamic" else run.n_workers
    num_workers = 0 if run.vec_env == "serial" else chosen
    wanted = min(len(env_fns), max(1, int(usable_cores()))) if isinstance(num_workers, str) else num_workers
    free = free_memory_bytes()
    if num_workers != 0 and wanted * WORKER_BYTES > free:
        needed = f"{counted(wanted, 'worker')} would need about {wanted * WORKER_BYTES / 1e6:,.0f} MB"
        reason = f"{needed} of memory, but {free / 1e6:,.0f} MB are free"
    elif num_workers == 0:
        return TradingVecEnv(env_fns, built_from, monitor, num_workers=0, copy=copy)
    else:
        try:
            return TradingVecEnv(
                env_fns,
                built_from,
                monitor,
                num_workers=num_workers,
                start_method=run.parallel_start_method,
                step_timeout_s=run.step_timeout_s,
                on_worker_failure=run.on_worker_failure,
                copy=copy,
            )
        except _NO_WORKERS as error:
            reason = f"workers cannot be started ({type(error).__name__}: {' '.join(str(error).split()).rstrip('.')})"
    sentence = f"The environments are stepped in this process: {reason}. Results are the same."
    if logger is None:
        warnings.warn(sentence, stacklevel=3)
    else:
        logger.warning("%s", sentence)
    return TradingVecEnv(env_fns, built_from, monitor, num_workers=0, copy=copy)


# Assumed cost of one vector step in addition to the environments, used only to rank the counts: acting and storing with
# a small policy (`time/acting_s` of a run divided by its vector steps), and waking one worker.
_ACTING_S = 8e-5
_WAKE_S = 7e-5
# Add environments only if throughput grows by this factor.
_WORTH = 1.1
WORKER_BYTES = 60_000_000
"""Memory of a worker process: 40 MB of Python, NumPy and Gymnasium, plus its environments."""


def choose_n_envs(
    n_symbols: int, cost: StepCost | None, *, most: int, cores: float, free_bytes: int, bytes_each: int
) -> EnvCount:
    """The fewest environments whose steps per second are within a tenth of the maximum.

    The number is a multiple of the number of symbols. cost: of a step; None if it could not be measured. most: the
    limit. cores: free cores. bytes_each: rollout memory of one environment.
    Raises UserError if the limit is below one environment per symbol.

    >>> choose_n_envs(2, StepCost(1e-3, 0.0), most=8, cores=2, free_bytes=10**9, bytes_each=10**6).n_envs
    2
    """
    if n_symbols > most:
        raise UserError(
            f"{counted(n_symbols, 'symbol')} need an environment each, but max_concurrent_envs is {most}; raise it in "
            f"the section vectorized to {n_symbols} or more, or name fewer symbols."
        )
    counts = range(n_symbols, most + 1, n_symbols)
    rates = {n: _steps_per_second(n, cost or StepCost(1e-5, 0.0), cores) for n in counts}
    affordable = {n: rate for n, rate in rates.items() if n == n_symbols or n * bytes_each <= free_bytes / 2}
    best = max(affordable.values())
    chosen = next(n for n, rate in affordable.items() if rate * _WORTH >= best)
    measured = "its steps refuse random actions" if cost is None else f"a step takes {_time(cost.cpu_s + cost.wait_s)}"
    limit = f"at most {most}" if len(affordable) == len(rates) else f"{free_bytes / 1e6:,.0f} MB are free"
    return EnvCount(
        chosen,
        f"n_envs is {chosen}: {measured}, {counted(n_symbols, 'symbol')}, {cores:.3g} cores, {limit}; give n_envs "
        f"{chosen} to repeat the run elsewhere.",
    )


def _steps_per_second(n: int, cost: StepCost, cores: float) -> float:
    division = choose_division(cost, n, cores, wake_s=_WAKE_S)
    alone_s = n * (cost.cpu_s + cost.wait_s)
    return n / (_ACTING_S + alone_s / expected_speedup(cost, n, division, cores, wake_s=_WAKE_S))


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.3g} µs"
