"""How fast a training is, what its environments are worth beside a single one, and what it takes of memory."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from gymnasium.vector import VectorEnv

from ml_pipeline.jobs.budget import free_memory_bytes
from ml_pipeline.models.rl.core.arguments import expected_gain
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.monitoring.sink import EpisodeRecord
from ml_pipeline.trading.envs.batched import BatchedTradingEnv

_MB = 1e6
_ROUNDS, _ROUND_S = 5, 0.04
"""The best of these counts: whoever else is at work only makes a round slower."""
_PARTS = ("acting", "stepping", "waiting", "exchanging", "learning")


class TimeSink:
    """Adds up the steps of a training and the seconds that they took."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._seconds = 0.0

    @property
    def rate(self) -> float | None:
        """Environment steps per second; None before the first iteration."""
        return self._steps / self._seconds if self._seconds else None

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one iteration."""
        seconds = sum(metrics.get(f"time/{part}_s", 0.0) for part in _PARTS)
        self._seconds += seconds
        self._steps += metrics["time/steps_per_second"] * seconds

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class Measured:
    """Environment steps per second of a vector of environments, and of one alone; None where it cannot be known.

    expected_speedup: what the choice of workers expects of them, over stepping one after another; None if unknown.
    """

    rate: float | None
    single_rate: float | None
    expected_speedup: float | None


def measure(envs: VectorEnv, make_one: EnvFactory | None) -> Measured:
    """Step the environments, and a single one, by random actions; they are then as they were.

    Where their states cannot be kept, they need a reset afterwards, with which every training begins.
    """
    with _unmonitored(envs):
        return _measured(envs, make_one)


def described(envs: VectorEnv | None, measured: Measured | None) -> dict[str, Any]:
    """The figures of `TrainerCore.get_training_performance_info` about environments; None where there are none."""
    rate, single_rate = (measured.rate, measured.single_rate) if measured else (None, None)
    return {
        "environment_type": None if envs is None else environment_type(envs),
        "num_envs": None if envs is None else envs.num_envs,
        "num_workers": None if envs is None else getattr(envs, "num_workers", 0),
        "env_steps_per_second": rate,
        "single_env_steps_per_second": single_rate,
        "measured_speedup": rate / single_rate if rate and single_rate else None,
        "expected_speedup": measured.expected_speedup if measured else None,
    }


def environment_type(envs: VectorEnv) -> str:
    """How environments are stepped, in words; the name of the class where it is none of ours."""
    if isinstance(envs, ParallelEnv):
        kinds = ["workers"] if envs.num_workers else []
        return " and ".join([*kinds, *(["in-process"] if envs.steps_here else [])])
    return "batched" if isinstance(envs, BatchedTradingEnv) else type(envs).__name__


def memory_mb() -> dict[str, float]:
    """Resident memory in MB (10^6 bytes): of this process, of its children, and what more processes may take.

    Pages that processes share count in each of them.
    """
    this = psutil.Process()
    children = 0
    for child in this.children(recursive=True):
        try:
            children += child.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return {
        "process_mb": this.memory_info().rss / _MB,
        "children_mb": children / _MB,
        "available_mb": free_memory_bytes() / _MB,
    }


@contextmanager
def _unmonitored(envs: VectorEnv) -> Iterator[None]:
    """Write no figures of episodes in the block."""
    before = getattr(envs, "is_monitored", None)
    if before is not None:
        envs.is_monitored = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before is not None:
            envs.is_monitored = before  # type: ignore[attr-defined]


def _measured(envs: VectorEnv, make_one: EnvFactory | None) -> Measured:
    try:
        states = envs.get_states()  # type: ignore[attr-defined]
    except (AttributeError, StateNotAvailable):
        states = None
    if make_one is None:
        rate, single_rate, expected = _best(_rate(envs) for _ in range(_ROUNDS)), None, None
    else:
        with closing(SerialEnv([make_one])) as single:
            rounds = [[_rate(vector) for vector in (envs, single)] for _ in range(_ROUNDS)]  # under the same load
        rate, single_rate = (_best(rates) for rates in zip(*rounds, strict=True))
        expected = None
        if isinstance(envs, ParallelEnv):
            with closing(make_one()) as env:
                expected = expected_gain(env, envs.num_envs, Division(envs.num_workers, envs.steps_here))
    if states is not None:
        envs.set_states(states)  # type: ignore[attr-defined]
    return Measured(rate, single_rate, expected)


def _best(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return max(known) if known else None


def _rate(envs: VectorEnv) -> float | None:
    """Environment steps per second by random actions, resets included; None where they refuse those."""
    try:
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(16)]
        envs.reset(seed=0)
        envs.step(actions[0])
        steps, began = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - began) < _ROUND_S:
            envs.step(actions[steps % len(actions)])
            steps += 1
    except Exception:  # random actions may be illegal in it; then nothing is known
        return None
    return steps * envs.num_envs / elapsed_s if steps else None
