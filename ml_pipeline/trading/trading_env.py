"""Environments from data, settings and the names of features: `FastTrainingEnv`, `StatefulTradingEnv`, `TradingEnv`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ml_pipeline.config.sections import part_of_whole, same
from ml_pipeline.trading.envs import stateful
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.rewards import Reward
from ml_pipeline.trading.gym_ids import task_on
from ml_pipeline.trading.sections import TRADING_SECTIONS
from ml_pipeline.trading.settings import TradingConfig

Config = TradingConfig | Mapping[str, Any] | str | Path


class FastTrainingEnv(FastTradingEnv):
    """A `FastTradingEnv` that passes once through the data, or through `episode_length` bars if `cfg` names it.

    data: a path, a pandas or polars frame, `MarketData`, or None for the built-in market.
    cfg: a `TradingConfig`; or the whole configuration of a training, of which the settings of trading count: the path
    of a settings file, or a mapping, in sections (`reward_config`, `portfolio_config`, `lookback_window`, ...) or flat.
    features: names of features, in place of those of `cfg`.
    split: "all" bars, or the "train", "validation" or "test" split of them. Features are scaled by the training split.
    reward: an object, or its class, in place of the reward that `cfg` names.
    Raises UserError if the data or a setting cannot be used.

    >>> env = FastTrainingEnv(None, {"reward_config": {"type": "fast_profit_reward"}}, ["rsi_14", "ema_distance_20"])
    >>> env.observation_space.shape
    (3,)
    """

    # Says that this class adds nothing that a step changes.
    get_plain_state = FastTradingEnv.get_plain_state

    def __init__(
        self,
        data: Any = None,
        cfg: Config | None = None,
        features: Sequence[str] | None = None,
        *,
        split: str = "all",
        reward: Reward | type[Reward] | None = None,
    ) -> None:
        settings = _settings_of(cfg, features)
        task = task_on(data, settings)
        length = {"episode_length": None} if "episode_length" not in settings else {}
        settings = {**task.training_settings(), **length, **_own(reward)}
        super().__init__(task.bars_of(split), task.rules, **settings)


class StatefulTradingEnv(stateful.StatefulTradingEnv):
    """A `StatefulTradingEnv` that passes once through the data; its arguments are those of `FastTrainingEnv`.

    render_mode: "rgb_array" lets `render` draw the run.
    """

    get_plain_state = stateful.StatefulTradingEnv.get_plain_state

    def __init__(
        self,
        data: Any = None,
        cfg: Config | None = None,
        features: Sequence[str] | None = None,
        *,
        split: str = "all",
        reward: Reward | type[Reward] | None = None,
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        task = task_on(data, _settings_of(cfg, features))
        settings = {**task.training_settings(), "episode_length": None, **_own(reward)}
        super().__init__(task.bars_of(split), task.rules, **settings, render_mode=render_mode)


class TradingEnv(StatefulTradingEnv):
    """`StatefulTradingEnv` under the name that existing code has.

    >>> env = TradingEnv(None, {"reward_config": {"type": "fast_profit_reward"}}, ["rsi_14", "ema_distance_20"])
    >>> env.observation_space.shape
    (3,)
    """

    get_plain_state = StatefulTradingEnv.get_plain_state


def _own(reward: Reward | type[Reward] | None) -> dict[str, Any]:
    if isinstance(reward, type):
        reward = reward()
    return {} if reward is None else {"reward": reward}


def _settings_of(cfg: Config | None, features: Sequence[str] | None) -> dict[str, Any]:
    """Every setting of trading that is given, by the name of its field in `TradingConfig`."""
    if isinstance(cfg, TradingConfig):
        settings = {each.name: getattr(cfg, each.name) for each in fields(cfg)}
    else:
        settings = _read(cfg or {})
    if features is not None:
        settings["features"] = features if isinstance(features, str) else tuple(features)
    return settings


def _read(cfg: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    sections = {**TRADING_SECTIONS, "lookback_window": same("window")}  # a key of stock_env that may stand without it
    return part_of_whole(cfg, sections, get_type_hints(TradingConfig))
