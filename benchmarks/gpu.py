"""Training on a GPU beside the CPU, in one run: steps a second, utilization, and where the time goes.

    python benchmarks/gpu.py [--rounds 3] [--device cuda]

Three jobs: BatchedTradingEnv, 4,096 environments, as tensors that stay on the device (on the CPU as arrays, and as
tensors too, to choose between them); CartPole-v1 by ParallelEnv, whose observations a policy on the device is sent; and
the same with frames of 84x84x4, whose convolutions are what a GPU is for.
Contestants take turns within a round; figures are medians. On cuda, parts of an iteration are told apart by events, for
which the device is waited for at the end; utilization is the driver's, asked after each iteration. Where there is no
GPU, the CPU's figures stand alone and a sentence says so.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from throughput_envs import Frames
from trading_envs import market

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv

WARM_UP, COUNTED = 1, 2  # iterations
BATCHED = PPOConfig(n_steps=32, minibatch_size=16_384, n_epochs=4)
PARALLEL = PPOConfig(n_steps=256, minibatch_size=256, n_epochs=10)
IMAGES = PPOConfig(n_steps=64, minibatch_size=128, n_epochs=4)


class Measured(NamedTuple):
    """Of one round; the shares of acting, stepping and learning add up to 1; utilization in percent, or None."""

    steps_per_s: float
    shares: tuple[float, float, float]
    utilization: float | None


class Clock:
    """Moments on a device: events on cuda, which the device passes in its own time, and the host's clock elsewhere."""

    def __init__(self, device: str) -> None:
        self._on_cuda = device == "cuda"

    def now(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two moments that have passed."""
        return begin.elapsed_time(end) / 1e3 if self._on_cuda else end - begin

    def wait(self) -> None:
        """Until the device has passed every moment so far."""
        if self._on_cuda:
            torch.cuda.synchronize()


def cart_pole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


@contextlib.contextmanager
def batched(device: str, *, tensors: bool) -> Iterator[PPOTrainer]:
    rules = TradingRules("discrete")
    envs = BatchedTradingEnv(market(1, 16), 4_096, rules, episode_length=256, device=device if tensors else None)
    yield trainer(envs, BATCHED, device)


@contextlib.contextmanager
def parallel(make_env: Callable[[], Any], config: PPOConfig, device: str) -> Iterator[PPOTrainer]:
    with contextlib.closing(ParallelEnv([make_env] * 8, copy=False)) as envs:
        yield trainer(envs, config, device)


def trainer(envs: Any, config: PPOConfig, device: str) -> PPOTrainer:
    return PPOTrainer(envs, config, device=device)


def contestants(device: str | None) -> dict[str, Callable[[], Any]]:
    """Each with the name of what trains, first those on the CPU."""
    found = {
        "BatchedTradingEnv 4,096, cpu, arrays": ("cpu", lambda: batched("cpu", tensors=False)),
        "BatchedTradingEnv 4,096, cpu, tensors": ("cpu", lambda: batched("cpu", tensors=True)),
        "CartPole-v1 8, ParallelEnv, cpu": ("cpu", lambda: parallel(cart_pole, PARALLEL, "cpu")),
        "frames of 84x84x4, 8, cpu": ("cpu", lambda: parallel(Frames, IMAGES, "cpu")),
    }
    if device is not None:
        found[f"BatchedTradingEnv 4,096, {device}"] = (device, lambda: batched(device, tensors=True))
        found[f"CartPole-v1 8, ParallelEnv, {device}"] = (device, lambda: parallel(cart_pole, PARALLEL, device))
        found[f"frames of 84x84x4, 8, {device}"] = (device, lambda: parallel(Frames, IMAGES, device))
    return {name: lambda on=on, make=make: measure(on, make) for name, (on, make) in found.items()}


def measure(device: str, make: Callable[[], Any]) -> Measured:
    """Train for the warm-up and then for the counted iterations; moments are taken around step() and the rollout."""
    clock = Clock(device)
    with make() as trained:
        for _ in range(WARM_UP):
            trained.train_episode_vectorized()
        steps: list[tuple[Any, Any]] = []
        rollouts: list[tuple[Any, Any]] = []
        collector = trained._collector
        collector._envs.step = timed(collector._envs.step, clock, steps)
        collector.collect = timed(collector.collect, clock, rollouts)
        clock.wait()
        begin, first, utilizations = clock.now(), trained.global_step, []
        for _ in range(COUNTED):
            trained.train_episode_vectorized()
            if device == "cuda":
                utilizations.append(utilization())
        end = clock.now()
        clock.wait()
        total = clock.seconds(begin, end)
        stepping, collecting = (sum(clock.seconds(*pair) for pair in pairs) for pairs in (steps, rollouts))
        shares = ((collecting - stepping) / total, stepping / total, (total - collecting) / total)
        known = [percent for percent in utilizations if percent is not None]
        rate = (trained.global_step - first) / total
        return Measured(rate, shares, statistics.mean(known) if known else None)


def timed(function: Callable[..., Any], clock: Clock, pairs: list[tuple[Any, Any]]) -> Callable[..., Any]:
    """The same function, whose begin and end are added to `pairs`."""

    def call(*arguments: Any, **named: Any) -> Any:
        begin = clock.now()
        result = function(*arguments, **named)
        pairs.append((begin, clock.now()))
        return result

    return call


def utilization() -> float | None:
    """Percent of the last sampling period in which the GPU was at work; None where the driver does not tell."""
    try:
        return float(torch.cuda.utilization())
    except (ModuleNotFoundError, RuntimeError):  # it asks a library that is not always there
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    there = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
    parser.add_argument("--device", choices=("cuda", "mps"), default=there)
    options = parser.parse_args()
    if there is None:
        print(
            "No GPU was found: the GPU's part of this benchmark was never run here, and only the CPU's figures follow."
        )
    measured: dict[str, list[Measured]] = {}
    for _ in range(options.rounds):
        for name, run in contestants(options.device if there else None).items():
            measured.setdefault(name, []).append(run())
    print(f"{'':42}{'steps/s':>12}{'acting':>9}{'stepping':>10}{'learning':>10}{'utilization':>13}")
    for name, rounds in measured.items():
        acting, stepping, learning = (statistics.median(each.shares[i] for each in rounds) for i in range(3))
        known = [each.utilization for each in rounds if each.utilization is not None]
        used = f"{statistics.median(known):.0f} %" if known else "-"
        rate = statistics.median(each.steps_per_s for each in rounds)
        print(f"{name:42}{rate:12,.0f}{acting:9.0%}{stepping:10.0%}{learning:10.0%}{used:>13}")


if __name__ == "__main__":
    main()
