"""Trains one policy on two currencies, and prints what many environments are worth beside a single one.

    python examples/vectorized_training_example.py
    python examples/vectorized_training_example.py data/forex EURUSD GBPUSD

Without a folder it trains on the built-in market, written as two files. It writes logs/ and checkpoints/ where it runs.
"""

import sys
import tempfile
from pathlib import Path

from ml_pipeline.service import TrainerAgent
from ml_pipeline.trading import synthetic_market

SETTINGS = Path(__file__).with_suffix(".yaml")


def write_built_in_market(folder: Path, symbols: list[str]) -> None:
    """One CSV file per symbol: time, open, high, low, close, volume."""
    market = synthetic_market(n_bars=3_000, n_symbols=len(symbols))
    for i, symbol in enumerate(symbols):
        columns = [market.open, market.high, market.low, market.close, market.volume]
        rows = zip(market.times.astype("datetime64[D]"), *(column[:, i] for column in columns), strict=True)
        lines = ["time,open,high,low,close,volume", *(",".join(map(str, row)) for row in rows)]
        (folder / f"FOREX_{symbol}_1D.csv").write_text("\n".join(lines) + "\n")


def main(data_dir: Path, symbols: list[str]) -> None:
    trainer = TrainerAgent(SETTINGS)
    vec_env = trainer.create_vectorized_env(symbols, data_dir, n_envs=None)  # None: chosen by measuring
    try:
        trainer.set_env(vec_env)
        model_path = trainer.train()
        speed = trainer.trainer_core.get_training_performance_info()
    finally:
        vec_env.close()

    print(trainer.trainer_core.run_result.report)
    print()
    print(f"Environments:       {speed['num_envs']}, {speed['environment_type']}")
    print(f"Worker processes:   {speed['num_workers']}")
    print(f"One environment:    {speed['single_env_steps_per_second']:>10,.0f} steps/s")
    print(f"All of them:        {speed['env_steps_per_second']:>10,.0f} steps/s")
    print(f"Speed-up:           {speed['measured_speedup']:>10.2f} measured, {speed['expected_speedup']:.2f} expected")
    print(f"Training, all in:   {speed['steps_per_second']:>10,.0f} steps/s")
    print(f"Memory:             {speed['memory']['process_mb']:>10,.0f} MB")
    print(f"The best policy is  {model_path}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(Path(sys.argv[1]), sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_built_in_market(Path(folder), ["EURUSD", "GBPUSD"])
            main(Path(folder), ["EURUSD", "GBPUSD"])
