"""What sinks and the sampling of resources cost a training on CartPole: in the loop, and in all.

    python benchmarks/sinks.py                    # about two minutes
    python benchmarks/sinks.py --iterations 100 --rounds 9

The first figure is the time that write() keeps the trainer, as a share of an iteration. The second is how much longer
the whole loop takes than without a sink, by the median of rounds in which the contestants take turns: a thread that
writes shares the interpreter with the trainer. What a machine that does other work prints is worth nothing.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.monitoring.resources import Resources
from ml_pipeline.monitoring.sinks import MetricsSink
from ml_pipeline.monitoring.trackers import TensorBoardSink, ThreadedSink, WandbSink

N_ENVS = 8


class OwnSink:
    """As small as a user's: a line per iteration."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def write(self, metrics: Any, episodes: Any) -> None:
        self._file.write(f"{metrics['time/global_step']}\t{metrics['rollout/mean_return_100']}\n")

    def close(self) -> None:
        self._file.close()


class Timed:
    """Another sink, and how long its write() took in all."""

    def __init__(self, sink: MetricsSink | None) -> None:
        self._sink = sink
        self.spent_s = 0.0

    def write(self, metrics: Any, episodes: Any) -> None:
        began = time.perf_counter()
        if self._sink is not None:
            self._sink.write(metrics, episodes)
        self.spent_s += time.perf_counter() - began

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()


def contestants(folder: Path) -> dict[str, Callable[[], MetricsSink] | None]:
    """How each opens its sink, by name."""
    return {
        "none": None,
        "tensorboard": partial(TensorBoardSink, folder / "events", {}),
        "wandb offline": partial(WandbSink, "benchmark", folder, {}),
        "own": partial(OwnSink, folder / "own.tsv"),
        "resources": None,
    }


@contextlib.contextmanager
def hook(name: str) -> Iterator[Any]:
    if name != "resources":
        yield None
        return
    with contextlib.closing(Resources()) as resources:
        yield resources


def trained(name: str, folder: Path, iterations: int) -> tuple[float, float]:
    """Seconds of an iteration, and seconds of those in write() or in the hook."""
    open_sink = contestants(folder)[name]
    sink = None if open_sink is None else ThreadedSink(name, open_sink, say=print, close_timeout_s=60.0)
    timed = Timed(sink)
    config = PPOConfig()
    total = iterations * N_ENVS * config.n_steps
    envs = ParallelEnv([partial(gymnasium.make, "CartPole-v1")] * N_ENVS, num_workers=0, copy=False)
    hooked_s = 0.0
    with contextlib.closing(timed), contextlib.closing(envs), hook(name) as resources:
        trainer = PPOTrainer(envs, config, total_timesteps=total + N_ENVS * config.n_steps, sink=timed)
        began = 0.0

        def after(trainer: Any, statistics: Any) -> Any:
            nonlocal began, hooked_s
            if trainer.iteration == 1:  # what is compiled and imported once does not count
                began = time.perf_counter()
                timed.spent_s = 0.0
            entered = time.perf_counter()
            figures = resources(trainer, statistics) if resources is not None else None
            hooked_s += (time.perf_counter() - entered) if trainer.iteration > 1 else 0.0
            return figures

        trainer.train(after_iteration=after, progress=False)
        spent_s = time.perf_counter() - began
    return spent_s / iterations, (timed.spent_s + hooked_s) / iterations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["WANDB_MODE"] = "offline"
    measured: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as root:
        for i in range(arguments.rounds):
            for name in contestants(Path(root)):
                folder = Path(root) / f"{name}-{i}"
                folder.mkdir()
                measured.setdefault(name, []).append(trained(name, folder, arguments.iterations))
    print(f"CartPole-v1, {N_ENVS} environments, {arguments.iterations} iterations, by the median of rounds")
    print("| sink | iteration | in write() | of an iteration | loop against none |\n| --- | --- | --- | --- | --- |")
    for name, rounds in measured.items():
        iteration_s, inside_s = (statistics.median(column) for column in zip(*rounds, strict=True))
        against = statistics.median(ours[0] / none[0] for ours, none in zip(rounds, measured["none"], strict=True))
        print(
            f"| {name} | {iteration_s * 1e3:.2f} ms | {inside_s * 1e6:.1f} µs | {inside_s / iteration_s:.3%} | "
            f"{against - 1:+.1%} |"
        )


if __name__ == "__main__":
    main()
