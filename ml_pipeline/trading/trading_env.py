"""`TradingEnv(data, cfg, features)`: the stateful environment from data, settings and the names of features."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.sections import flatten_sections
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.gym_ids import task_on
from ml_pipeline.trading.sections import TRADING_SECTIONS
from ml_pipeline.trading.settings import TradingConfig


class TradingEnv(StatefulTradingEnv):
    """A `StatefulTradingEnv` that passes once through the data.

    data: a path, a pandas or polars frame, `MarketData`, or None for the built-in market.
    cfg: a `TradingConfig`, or a mapping with its settings, in sections (`reward_config`, `portfolio_config`,
    `lookback_window`, ...) or flat. features: names of features, in place of those of `cfg`.
    split: "all" bars, or the "train", "validation" or "test" split of them. Features are scaled by the training split.
    Raises UserError where the data or a setting cannot be used.

    >>> env = TradingEnv(None, {"reward_config": {"type": "fast_profit_reward"}}, ["rsi_14", "ema_distance_20"])
    >>> env.observation_space.shape
    (3,)
    """

    # Says that this class adds nothing that a step changes.
    get_plain_state = StatefulTradingEnv.get_plain_state

    def __init__(
        self,
        data: Any = None,
        cfg: TradingConfig | Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        *,
        split: str = "all",
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        task = task_on(data, _config_of(cfg, features))
        super().__init__(
            task.bars_of(split),
            task.rules,
            window=task.config.window,
            reward=task.training_settings()["reward"],
            render_mode=render_mode,
        )


def _config_of(cfg: TradingConfig | Mapping[str, Any] | None, features: Sequence[str] | None) -> dict[str, Any]:
    """Every setting that is given, by the name of its field in `TradingConfig`."""
    if isinstance(cfg, TradingConfig):
        settings = {each.name: getattr(cfg, each.name) for each in fields(cfg)}
    else:
        within = {"lookback_window": "window"}  # keys of a stock_env that may stand without it
        content = {within.get(str(key), key): value for key, value in (cfg or {}).items()}
        settings = flatten_sections(content, TRADING_SECTIONS, Path("cfg"))
    return {**settings, "features": tuple(features)} if features is not None else settings
