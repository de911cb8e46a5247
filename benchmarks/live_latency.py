"""From a closed bar to target weights: the time that a decision takes, part by part.

python benchmarks/live_latency.py [--symbols 100] [--bars 1000] [--hidden 64 64] [--features rsi_14 ...]
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy, load_deployed_policy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

_PARTS = ("features", "policy", "sizing", "all")


def minute_bars(n_bars: int, n_symbols: int) -> MarketData:
    """The built-in market as if its bars were minutes."""
    made = synthetic_market(n_bars=n_bars, n_symbols=n_symbols)
    times = np.datetime64("2024-01-02", "ns") + np.arange(n_bars) * np.timedelta64(1, "m")
    prices = {name: getattr(made, name) for name in ("open", "high", "low", "volume")}
    return market_from_arrays(made.symbols, times, made.close, **prices)


def untrained(folder: Path, market: MarketData, features: tuple[str, ...], hidden: tuple[int, ...]) -> DeployedPolicy:
    """A policy for the market, as a run would leave it."""
    trading = TradingConfig(features=features, action_mode="target_weights")
    config = TrainConfig(trading=trading, ppo=PPOConfig(hidden_sizes=hidden))
    task = TradingTask(trading, market=market)
    env = task.evaluation_env("all")
    policy = Policy(env.observation_space, env.action_space, config.ppo)
    saved = {"config": flatten(config), "task": task.state(), "trainer": {"policy": policy.state_dict()}}
    save_checkpoint(folder / "best.pt", saved)
    return load_deployed_policy(folder)


def measure(decider: PolicyRunner, market: MarketData) -> dict[str, np.ndarray]:
    """Seconds of each part of each bar from the first decision on. Orders are sized, not sent."""
    n_assets = len(market.symbols)
    terms = decider.policy.rules.terms(market.periods_per_year)
    holdings, orders = [0.0] * n_assets, [0.0] * n_assets
    taken: dict[str, list[float]] = {part: [] for part in _PARTS}
    for bars in bar_sets_of(market):
        begin = time.perf_counter()
        ready = decider.observe(bars)
        observed = time.perf_counter()
        if not ready:
            continue
        decision = decider.decide([0.0] * n_assets)
        decided = time.perf_counter()
        PLAIN.size_orders(decision.weights, decision.may_trade, 1e6, holdings, bars.close.tolist(), terms, orders)
        sized = time.perf_counter()
        for part, seconds in zip(
            _PARTS, (observed - begin, decided - observed, sized - decided, sized - begin), strict=True
        ):
            taken[part].append(seconds)
    return {part: np.array(seconds) for part, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--symbols", type=int, default=100)
    parser.add_argument("--bars", type=int, default=1_000)
    parser.add_argument("--hidden", type=int, nargs="+", action="append", help="layer sizes; may be given twice")
    parser.add_argument("--features", nargs="+", default=list(DEFAULT_FEATURES))
    asked = parser.parse_args()
    market = minute_bars(asked.bars, asked.symbols)
    print(f"{asked.symbols} symbols, {asked.bars:,} 1-minute bars, {len(asked.features)} features per symbol")
    for hidden in asked.hidden or ([64, 64], [256, 256]):
        with TemporaryDirectory() as folder:
            policy = untrained(Path(folder), market, tuple(asked.features), tuple(hidden))
        taken = measure(PolicyRunner(policy, market.symbols, market.timing), market)
        print(f"network {'x'.join(map(str, hidden))}: milliseconds, median and 99th percentile")
        for part, seconds in taken.items():
            median, p99 = np.percentile(seconds, [50, 99]) * 1e3
            print(f"  {part:<9}{median:8.2f}{p99:8.2f}")


if __name__ == "__main__":
    main()
