"""Gymnasium ids of the trading environments. Importing this module registers them.

    import ml_pipeline.trading.gym_ids
    gymnasium.make("TradingEnv-v1", market="prices.csv", fee_bps=2)

or, without the import, `gymnasium.make("ml_pipeline.trading.gym_ids:TradingEnv-v1", ...)`.

- `TradingEnv-v1` makes a `StatefulTradingEnv`: it keeps a ledger of every bar, reports the account in `info`, and
  renders. Use it to begin with, and to evaluate. `StatefulTradingEnv-v1` is another name for it.
- `FastTradingEnv-v1` makes a `FastTradingEnv`: the same accounts, observations and rewards without a ledger. Use it to
  train. Its episodes begin at a random bar; those of `TradingEnv-v1` pass through the whole split by default.
- `BatchedTradingEnv` has no id. It is many environments in one: make it from Python to train in hundreds of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium

if TYPE_CHECKING:
    from ml_pipeline.trading.task import TradingTask

_KINDS = {"TradingEnv-v1": "stateful", "StatefulTradingEnv-v1": "stateful", "FastTradingEnv-v1": "fast"}


def make_env(
    market: Any = None,
    *,
    kind: Literal["fast", "stateful"] = "stateful",
    split: str = "train",
    render_mode: Literal["rgb_array"] | None = None,
    **settings: Any,
) -> gymnasium.Env[Any, Any]:
    """An environment on one split of a market, with features scaled by the training split.

    market: a path, a pandas or polars frame, `MarketData`, or None for the built-in market.
    kind: the class, see above. split: "train", "validation", "test" or "all"; "fast" is always on "train".
    render_mode: None, or "rgb_array" with "stateful".
    settings: of `TradingConfig`. Without episode_length, a "stateful" episode passes through the whole split.
    Raises UserError if the market or a setting cannot be used.
    """
    from ml_pipeline.config.errors import UserError
    from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

    if render_mode not in {None, "rgb_array"} or (render_mode and kind == "fast"):
        raise UserError(f'render_mode must be None, or "rgb_array" with TradingEnv-v1, but got "{render_mode}".')
    task = task_on(market, settings)
    if kind == "fast":
        return task.train_env_fns(1)[0]()
    training = task.training_settings()
    if "episode_length" not in settings:
        training["episode_length"] = None
    return StatefulTradingEnv(task.bars_of(split), task.rules, **training, render_mode=render_mode)


def task_on(market: Any, settings: Mapping[str, Any]) -> "TradingTask":
    """The task on a path, a pandas or polars frame, `MarketData`, or, for None, the market that `settings` name.

    settings: of `TradingConfig`. Raises UserError if the market or a setting cannot be used.
    """
    from dataclasses import fields

    from ml_pipeline.config.errors import UserError, nearest
    from ml_pipeline.trading.market.data import MarketData
    from ml_pipeline.trading.market.files import market_from_frame
    from ml_pipeline.trading.market.resampling import BarForm
    from ml_pipeline.trading.settings import TradingConfig
    from ml_pipeline.trading.task import TradingTask

    known = [field.name for field in fields(TradingConfig)]
    if unknown := next((name for name in settings if name not in known), None):
        raise UserError(f'There is no setting "{unknown}". {nearest(unknown, known)}')
    if isinstance(market, str | Path):
        settings, market = {**settings, "data": Path(market)}, None
    elif market is not None and not isinstance(market, MarketData):
        given = TradingConfig(**settings)
        market = market_from_frame(
            market,
            symbols=given.symbols or None,
            bar_time=given.bar_time,
            form=given.form(),
            faults=given.faults(),
            dialect=given.dialect(),
        )
    elif market is not None and TradingConfig(**settings).form() != BarForm():
        raise UserError(
            "timeframe, session, timezone and adjust_splits are for bars that are read; give a path or a data frame, "
            "or leave them out."
        )
    return TradingTask(TradingConfig(**settings), market=market)


for _name, _kind in _KINDS.items():
    gymnasium.register(_name, entry_point="ml_pipeline.trading.gym_ids:make_env", kwargs={"kind": _kind})
