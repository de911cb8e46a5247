"""Gymnasium ids of the trading environments, known once this is imported.

    import ml_pipeline.trading.gym_ids
    gymnasium.make("TradingEnv-v1", market="prices.csv", fee_bps=2)

or, without the import, `gymnasium.make("ml_pipeline.trading.gym_ids:TradingEnv-v1", ...)`.
"""

from pathlib import Path
from typing import Any, Literal

import gymnasium

_KINDS = {"TradingEnv-v1": "stateful", "StatefulTradingEnv-v1": "stateful", "FastTradingEnv-v1": "fast"}


def make_env(
    market: Any = None,
    *,
    kind: Literal["fast", "stateful"] = "stateful",
    split: str = "train",
    render_mode: Literal["rgb_array"] | None = None,
    **settings: Any,
) -> gymnasium.Env[Any, Any]:
    """An environment on a split of a market; its features are scaled by the training split.

    market: a path, a pandas or polars frame, `MarketData`, or None for the built-in one. settings: of `TradingConfig`;
    without episode_length, "stateful" passes through the whole split. render_mode: None or, of "stateful", "rgb_array".
    Raises UserError where the market or a setting cannot be used.
    """
    from dataclasses import fields

    from ml_pipeline.config.errors import UserError, nearest
    from ml_pipeline.trading.envs.rewards import make_reward
    from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
    from ml_pipeline.trading.market.data import MarketData
    from ml_pipeline.trading.market.files import market_from_frame
    from ml_pipeline.trading.settings import TradingConfig
    from ml_pipeline.trading.task import TradingTask

    known = [field.name for field in fields(TradingConfig)]
    if unknown := next((name for name in settings if name not in known), None):
        raise UserError(f'There is no setting "{unknown}". {nearest(unknown, known)}')
    if render_mode not in {None, "rgb_array"} or (render_mode and kind == "fast"):
        raise UserError(f'render_mode must be "rgb_array", of TradingEnv-v1, or None, but got "{render_mode}".')
    whole_pass = "episode_length" not in settings
    if isinstance(market, str | Path):
        settings["data"] = Path(market)
        market = None
    elif market is not None and not isinstance(market, MarketData):
        market = market_from_frame(market)
    config = TradingConfig(**settings)
    task = TradingTask(config, market=market)
    if kind == "fast":
        return task.train_env_fns(1)[0]()
    return StatefulTradingEnv(
        task.bars_of(split),
        task.rules,
        window=config.window,
        episode_length=None if whole_pass else config.episode_length,
        reward=make_reward(config.reward, config.reward_scale),
        render_mode=render_mode,
    )


for _name, _kind in _KINDS.items():
    gymnasium.register(_name, entry_point="ml_pipeline.trading.gym_ids:make_env", kwargs={"kind": _kind})
