"""Steps a second of the trading environments beside gym-anytrading and Gym-Trading-Env, in one run, by medians.

python benchmarks/trading_envs.py            the others need: pip install -e '.[bench]'

A library that is not installed is named, and has no row. Ours have every cost and limit on, which the others lack. Each
is stepped as its users make it: theirs by gymnasium.make, and once more without the wrappers that it adds; ours as
training makes them. Rounds are interleaved, so that what slows the machine slows all. Absolute figures move from run to
run: compare within one.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from ml_pipeline.trading.accounts.compiled_kernel import can_compile
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

N_BARS = 5_000
EVERYTHING = {
    "fixed_fee": 0.1,
    "slippage_bps": 1.0,
    "sell_fee_bps": 6.0,
    "borrow_bps_per_year": 300.0,
    "lot_size": 1e-4,
    "min_order": 5.0,
    "max_position": 0.9,
    "max_gross": 0.95,
    "trade_limit_percent": 150.0,
    "min_cash": 0.01,
}

Rate = Callable[[], float]


def market(n_assets: int, n_features: int) -> PreparedMarket:
    """A random walk, with quotes."""
    generator = np.random.default_rng(0)
    close = 100 * np.exp(generator.normal(0, 0.001, (N_BARS, n_assets)).cumsum(axis=0))
    return PreparedMarket(
        symbols=tuple(f"S{i}" for i in range(n_assets)),
        times=np.datetime64("2000-01-01", "ns") + np.arange(N_BARS) * np.timedelta64(1, "h"),
        open=close * 1.0001,
        close=close,
        tradable=np.ones(close.shape, dtype=bool),
        features=generator.normal(size=(N_BARS, n_features)).astype(np.float32),
        clip=5.0,
        periods_per_year=8_760.0,
        half_spread=np.full(close.shape, 1e-4),
    )


def single(env: gymnasium.Env, actions: list[Any], n_steps: int) -> Rate:
    """Steps a second of one environment."""
    env.reset(seed=0)

    def run() -> float:
        start = time.perf_counter()
        for i in range(n_steps):
            _, _, terminated, truncated, _ = env.step(actions[i % len(actions)])
            if terminated or truncated:
                env.reset()
        return n_steps / (time.perf_counter() - start)

    return run


def batched(env: BatchedTradingEnv, actions: list[Any], n_calls: int) -> Rate:
    """Steps a second of all environments together."""
    env.reset(seed=0)

    def run() -> float:
        start = time.perf_counter()
        for i in range(n_calls):
            env.step(actions[i % len(actions)])
        return n_calls * env.num_envs / (time.perf_counter() - start)

    return run


def ours(n_steps: int) -> dict[str, Rate]:
    generator = np.random.default_rng(1)
    choices = generator.integers(0, 3, 1_000).tolist()
    weights = list(generator.uniform(-1, 1, (1_000, 10)).astype(np.float32))
    one, ten = market(1, 16), market(10, 100)
    rules = TradingRules("discrete", **EVERYTHING)
    rules_of_ten = TradingRules("target_weights", **EVERYTHING)
    rates = {}
    for engine in ("plain", "compiled") if can_compile() else ("plain",):
        for name, env_class in {"Fast": FastTradingEnv, "Stateful": StatefulTradingEnv}.items():
            env = env_class(one, rules, engine=engine)
            rates[f"{name}, 1 asset, 16 features, {engine}"] = single(env, choices, n_steps)
            env = env_class(ten, rules_of_ten, engine=engine)
            rates[f"{name}, 10 assets, 100 features, {engine}"] = single(env, weights, n_steps)
    many = list(generator.integers(0, 3, (64, 4_096)))
    many_weights = list(generator.uniform(-1, 1, (8, 4_096, 10)).astype(np.float32))
    for engine in ("plain", "compiled") if can_compile() else ("plain",):
        env = BatchedTradingEnv(one, 4_096, rules, episode_length=256, engine=engine)
        rates[f"Batched x 4,096, 1 x 16, {engine}"] = batched(env, many, max(10, n_steps // 40))
        env = BatchedTradingEnv(ten, 4_096, rules_of_ten, episode_length=256, engine=engine)
        rates[f"Batched x 4,096, 10 x 100, {engine}"] = batched(env, many_weights, max(10, n_steps // 400))
    return rates


def prices() -> Any:
    """The bars of `market` as a DataFrame with the columns that both libraries read."""
    import pandas as pd

    close = market(1, 1).close[:, 0]
    frame = pd.DataFrame(dict.fromkeys(("Open", "High", "Low", "Close", "open", "high", "low", "close"), close))
    frame["Volume"] = frame["volume"] = 1.0
    frame = pd.concat([frame, pd.DataFrame(market(1, 16).features).add_prefix("feature_")], axis=1)
    frame.index = pd.date_range("2000-01-01", periods=N_BARS, freq="h")
    return frame


def gym_anytrading(n_steps: int) -> dict[str, Rate]:
    import gym_anytrading  # noqa: F401  # registers its ids

    env = gymnasium.make("stocks-v0", df=prices(), window_size=10, frame_bound=(10, N_BARS))
    sides = np.random.default_rng(1).integers(0, 2, 1_000).tolist()
    return {
        "gym-anytrading, 1 asset": single(env, sides, n_steps),
        "gym-anytrading, unwrapped": single(env.unwrapped, sides, n_steps),
    }


def gym_trading_env(n_steps: int) -> dict[str, Rate]:
    import gym_trading_env  # noqa: F401  # registers its ids

    env = gymnasium.make(
        "TradingEnv", df=prices(), positions=[-1, 0, 1], trading_fees=5e-4, borrow_interest_rate=1e-6, verbose=0
    )
    choices = np.random.default_rng(1).integers(0, 3, 1_000).tolist()
    return {
        "Gym-Trading-Env, 1 asset": single(env, choices, n_steps // 4),
        "Gym-Trading-Env, unwrapped": single(env.unwrapped, choices, n_steps // 4),
    }


THEIRS = {"gym-anytrading": gym_anytrading, "Gym-Trading-Env": gym_trading_env}


def table(medians: dict[str, float]) -> list[str]:
    """A line per environment: its rate, and as a multiple of that of each library that was measured."""
    libraries = [name for name in THEIRS if f"{name}, 1 asset" in medians]
    lines = [f"{'steps a second':<44} {'median':>12}" + "".join(f"   x {name}" for name in libraries)]
    for name, rate in medians.items():
        ratios = [rate / medians[f"{library}, 1 asset"] for library in libraries]
        cells = [f"   {ratio:>{len(library) + 2}.2f}" for library, ratio in zip(libraries, ratios, strict=True)]
        lines.append(f"{name:<44} {rate:>12,.0f}" + "".join(cells))
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n-steps", type=int, default=20_000, help="steps of one environment in a round")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args(argv)
    rates, missing = ours(arguments.n_steps), []
    for library, rows in THEIRS.items():
        try:
            rates |= rows(arguments.n_steps)
        except ModuleNotFoundError as error:
            missing.append(f"{library} has no row: {error.name} is not installed; pip install -e '.[bench]'")
    measured: dict[str, list[float]] = {name: [] for name in rates}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gym-Trading-Env makes errors of all of them when it is imported
        for _ in range(arguments.rounds):
            for name, run in rates.items():
                measured[name].append(run())
    medians = {name: statistics.median(values) for name, values in measured.items()}
    print("\n".join([*table(medians), *missing]))


if __name__ == "__main__":
    main()
