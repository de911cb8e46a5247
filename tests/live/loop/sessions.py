"""Small markets on disk, untrained policies as they are deployed, and the ledger of their backtest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.connections import open_feed
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from ml_pipeline.live.feeds.hours import BarCalendar
from ml_pipeline.live.session import PaperTrading, SessionResult
from ml_pipeline.live.session_files import BROKER_FILE
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.restore import load_run, restore_policy
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.evaluation.report import write_ledger
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.trained_state import under_conditions

FEATURES = ("log_return_1", "rsi_3", "volume_zscore_4", "tradable", "time_of_day")


def write_prices(
    path: Path, symbols: list[str], *, n_bars: int = 60, seed: int = 0, quotes: bool = False, missing: float = 0.1
) -> None:
    """One-minute bars in long format, some of them missing where there are several symbols, over two days."""
    generator = np.random.default_rng(seed)
    names = "time,symbol,open,high,low,close,volume" + (",bid,ask" if quotes else "")
    lines = [names]
    times = np.datetime64("2024-03-04T23:30", "s") + np.arange(n_bars) * np.timedelta64(1, "m")
    closes = 100 * np.exp(generator.normal(0, 0.01, (n_bars, len(symbols))).cumsum(axis=0))
    for t, time in enumerate(times):
        for a, symbol in enumerate(symbols):
            close = float(closes[t, a])
            open_ = close * float(np.exp(generator.normal(0, 0.004)))
            high, low = max(open_, close) * 1.002, min(open_, close) * 0.998
            half = close * float(generator.uniform(0, 0.001))
            volume = float(generator.integers(1, 999))
            if len(symbols) > 1 and t > 5 and generator.random() < missing:
                continue
            cells = [open_, high, low, close, volume, *((close - half, close + half) if quotes else ())]
            lines.append(f"{str(time).replace('T', ' ')},{symbol},{','.join(map(repr, cells))}")
    path.write_text("\n".join(lines) + "\n")


def deploy(
    folder: Path, symbols: list[str], *, seed: int = 1, ppo: dict[str, Any] | None = None, **trading: Any
) -> Path:
    """A run folder whose best policy is not trained, and acts now one way and now another."""
    config = TrainConfig(
        trading=TradingConfig(**{"features": FEATURES, "window": 3, "fee_bps": 7.0, **trading}),
        ppo=PPOConfig(hidden_sizes=(8,), **(ppo or {})),
    )
    task = TradingTask(config.trading, market=_market(symbols))
    env = task.evaluation_env("all")
    policy = Policy(env.observation_space, env.action_space, config.ppo, seed=seed, device="cpu")
    generator = np.random.default_rng(seed)
    state = policy.state_dict()
    for weight in state["network"].values():
        weight.add_(weight.new_tensor(generator.normal(0, 1.0, weight.shape)))
    policy.load_state_dict(state)
    folder.mkdir(parents=True, exist_ok=True)
    saved = {"config": flatten(config), "task": task.state(), "trainer": {"policy": policy.state_dict()}}
    save_checkpoint(folder / "best.pt", saved)
    return folder


def backtest(model: Path, prices: Path, path: Path, **changes: Any) -> bytes:
    """The ledger that `evaluate MODEL --data PRICES` writes."""
    config, saved = load_run(model / "best.pt")
    trading = under_conditions(config.trading, {"data": prices, **changes})
    task = TradingTask.from_state(saved["task"], trading, config.run.seed)
    env = task.evaluation_env("all")
    policy = restore_policy(config, env, saved, model / "best.pt")
    write_ledger(path, run_policy(env, policy.act))
    return path.read_bytes()


class ChangedFeed:
    """A feed whose items are changed on their way to the session."""

    def __init__(self, feed: Any, next_item: Callable[[Any, float | None], Any]) -> None:
        self._feed, self._next_item = feed, next_item

    def next(self, timeout_s: float | None = None) -> Any:
        return self._next_item(self._feed, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


def session(
    model: Path,
    root: Path,
    *,
    prices: Path | None = None,
    broker_class: type[SimulatedBroker] | None = None,
    next_item: Callable[[Any, float | None], Any] | None = None,
    **settings: Any,
) -> PaperTrading:
    """A session on the simulated broker, called NAME.

    broker_class: in place of the usual one. next_item: what a feed gives next, of (the replay, timeout).
    """
    told: list[str] = []
    values = {"model": model, "root": root, "name": "NAME", "broker": "simulated", "replay": prices, **settings}
    config = paper_trade_config({name: v for name, v in values.items() if v is not None})
    feed: Any = None
    broker: Any = None
    if next_item is not None or broker_class is not None:
        policy = load_deployed_policy(model, {**config.changes, "data": prices})
        feed = open_feed(config, policy)
    if next_item is not None:
        feed = ChangedFeed(feed, next_item)
    if broker_class is not None:
        (root / "NAME").mkdir(parents=True, exist_ok=True)
        calendar = BarCalendar(feed.times_after, feed.timing)
        broker = broker_class(
            feed.symbols,
            policy.rules,
            periods_per_year=policy.calendar(feed.calendar).periods_per_year,
            store=root / "NAME" / BROKER_FILE,
            interest_days=calendar.interest_days,
            bar_length=np.timedelta64(feed.timing.length, "ns"),
            faults=config.faults,
            durable=False,
        )
    trading = PaperTrading(config, feed=feed, broker=broker, say=told.append)
    trading.told = told  # type: ignore[attr-defined]
    return trading


def trade(model: Path, root: Path, prices: Path, **settings: Any) -> SessionResult:
    """Trade a whole replay."""
    return session(model, root, prices=prices, **settings).run()


def _market(symbols: list[str]) -> MarketData:
    generator = np.random.default_rng(9)
    close = 100 * np.exp(generator.normal(0, 0.01, (80, len(symbols))).cumsum(axis=0))
    times = np.datetime64("2024-02-05T23:30", "ns") + np.arange(80) * np.timedelta64(1, "m")
    return market_from_arrays(
        symbols, times, close, high=close * 1.01, low=close * 0.99, open=close, volume=np.ones_like(close)
    )
