"""A market, a model of a few steps that trades it, and the session in which it is retrained."""

import shutil
from dataclasses import replace

import numpy as np

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.live.retraining.bars import write_bars
from ml_pipeline.live.retraining.retrainer import RetrainedSession, Retrainer
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.market.bar_set import MarketBuffer, bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.timeframes import infer_calendar
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.tuning.promotion.model_store import ModelStore

PPO = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=1, hidden_sizes=(8,), learning_rate=3e-3)
TRADING = TradingConfig(features=("log_return_1", "rsi_14"), window=2, episode_length=16)
HOUR = np.timedelta64(1, "h")


def market(n=360, *, symbols=("AAA",), seed=3):
    """Hourly bars that wander, around the clock."""
    generator = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(generator.normal(0.0002, 0.004, size=(n, len(symbols))), axis=0))
    times = (np.datetime64("2024-01-01", "h") + np.arange(n)).astype("datetime64[ns]")
    prices = {"open": close, "high": close * 1.001, "low": close * 0.999}
    return market_from_arrays(symbols, times, close, **prices, volume=np.ones_like(close))


def trained_model(folder, *, seed=0, trading=TRADING, **run):
    """The folder of a run that trained for a few steps; on a small market, unless `trading` names data."""
    if trading.data is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        bars = folder.parent / "small.parquet"
        write_bars(market(150), bars)
        trading = replace(trading, data=bars)
    usual = {"n_envs": 2, "vec_env": "serial", "iterations": 2, "eval_interval": 1}
    config = TrainConfig(run=RunConfig(**{**usual, **run}, seed=seed, checkpoint_dir=folder), ppo=PPO, trading=trading)
    Run(config, make_task(config)).train()
    return folder


def deployed(models, run, *, name="toy"):
    """The run as the next version of a deployed model, of its checkpoint alone."""
    store, record = ModelStore(models, name), {"study": "toys", "trial": 1}
    return store.promote(
        lambda folder: shutil.copyfile(run / "best.pt", folder / "best.pt"), record, instead_of=store.current
    )


def retrainer(folder, config, *, models, trading=TRADING):
    """Of the session in a folder, whose model is `toy` in `models`."""
    model = models / "toy"
    return Retrainer(config, RetrainedSession(folder=folder, named=model, checkpoint=model, trading=trading), model)


def growing(bars):
    """A tape after each bar of a market."""
    tape = MarketBuffer(bars.symbols, bars.timing, infer_calendar(bars.times))
    for each in bar_sets_of(bars):
        tape.append(each)
        yield tape
