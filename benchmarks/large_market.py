"""Time and memory that a large market takes, beside a small one: reading, preparing, and training.

python benchmarks/large_market.py            2,000,000 bars of a minute beside 20,000; --bars for others

Each part runs in a process of its own, whose peak memory is printed. "training" is 20 iterations of 8 environments
without evaluation and report: what it takes must not grow with the bars. Use an idle machine.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PARTS = ("inspect-data", "first environment", "training")


def write_market(path: Path, n_bars: int) -> None:
    """A random walk in minutes, as CSV."""
    import polars as pl

    generator = np.random.default_rng(0)
    close = 100 * np.exp(generator.normal(0, 2e-4, n_bars).cumsum())
    open_ = np.concatenate([[100.0], close[:-1]])
    reach = np.abs(generator.normal(0, 1e-4, (2, n_bars)))
    bars = {
        "time": np.datetime64("2020-01-01", "ns") + np.arange(n_bars) * np.timedelta64(1, "m"),
        "open": open_,
        "high": np.maximum(open_, close) * (1 + reach[0]),
        "low": np.minimum(open_, close) * (1 - reach[1]),
        "close": close,
        "volume": generator.integers(1, 1000, n_bars),
    }
    pl.DataFrame(bars).write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S", float_precision=5)


def run(part: str, path: Path) -> float:
    """Seconds that a part takes; what it needs before is not counted."""
    begin = time.perf_counter()
    if part == "inspect-data":
        from ml_pipeline.trading.inspect_data import main

        main([str(path)])
        return time.perf_counter() - begin
    from ml_pipeline.trading.settings import TradingConfig
    from ml_pipeline.trading.task import TradingTask

    task = TradingTask(TradingConfig(data=path))
    env_fns = task.train_env_fns(8)
    env_fns[0]().reset(seed=0)
    if part == "training":
        from ml_pipeline import PPOConfig, PPOTrainer, SerialEnv

        trainer = PPOTrainer(SerialEnv(env_fns), PPOConfig(n_steps=128), total_timesteps=20 * 8 * 128, seed=0)
        begin = time.perf_counter()
        trainer.train()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bars", type=int, nargs="+", default=[20_000, 2_000_000])
    parser.add_argument("--part", nargs=2, metavar=("PART", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        seconds = run(arguments.part[0], Path(arguments.part[1]))
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{seconds:.2f} s, {peak_gb:.2f} GB")
        return
    with tempfile.TemporaryDirectory() as folder:
        for n_bars in arguments.bars:
            path = Path(folder) / f"minutes_{n_bars}.csv"
            write_market(path, n_bars)
            for part in PARTS:
                command = [sys.executable, __file__, "--part", part, str(path)]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                print(f"{n_bars:>9,} bars  {part:<18} {said.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
