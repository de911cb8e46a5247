"""Gymnasium ids of the trading environments. Importing this module registers them.

    import ml_pipeline.trading.gym_ids
    gymnasium.make("TradingEnv-v1", market="prices.csv", fee_bps=2)

or, without the import, `gymnasium.make("ml_pipeline.trading.gym_ids:TradingEnv-v1", ...)`.

- `TradingEnv-v1` makes a `StatefulTradingEnv`: it keeps a ledger of every bar, reports the account in `info`, and
  renders. Use it to start with and to evaluate. `StatefulTradingEnv-v1` is another name for it.
- `FastTradingEnv-v1` makes a `FastTradingEnv`: the same accounts, observations and rewards without a ledger. Use it to
  train. Its episodes start at a random bar; those of `TradingEnv-v1` pass through the whole split by default.
- `BatchedTradingEnv`, many environments in one, has no id. Make it in Python to train in hundreds of environments.

The classes `FastTrainingEnv`, `StatefulTradingEnv` and `TradingEnv` make the same environments from data, settings and
names of features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import gymnasium

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.sections import part_of_whole, same
from ml_pipeline.trading.envs import stateful
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.rewards import Reward
from ml_pipeline.trading.sections import TRADING_SECTIONS
from ml_pipeline.trading.settings import TradingConfig

if TYPE_CHECKING:
    from ml_pipeline.trading.traded_market import TradedMarket


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
    Raises UserError if the market or a setting is invalid.
    """
    if render_mode not in {None, "rgb_array"} or (render_mode and kind == "fast"):
        raise UserError(f'render_mode must be None, or "rgb_array" with TradingEnv-v1, but got "{render_mode}".')
    traded = traded_on(market, settings)
    if kind == "fast":
        return traded.train_env_fn()()
    training = traded.training_settings()
    if "episode_length" not in settings:
        training["episode_length"] = None
    return stateful.StatefulTradingEnv(traded.bars_of(split), traded.rules, **training, render_mode=render_mode)


def traded_on(market: Any, settings: Mapping[str, Any]) -> "TradedMarket":
    """The traded market. market: a path, a pandas or polars frame, `MarketData`, or None for the market of `settings`.

    settings: of `TradingConfig`. Raises UserError if the market or a setting is invalid.
    """
    from ml_pipeline.trading.market.data import MarketData
    from ml_pipeline.trading.market.files import market_from_frame
    from ml_pipeline.trading.market.resampling import BarForm
    from ml_pipeline.trading.traded_market import TradedMarket

    known = [field.name for field in fields(TradingConfig)]
    if unknown := next((name for name in settings if name not in known), None):
        raise UserError(f'There is no setting "{unknown}". {nearest(unknown, known)}')
    if isinstance(market, str | Path):
        settings, market = {**settings, "data": Path(market)}, None
    elif market is not None and not isinstance(market, MarketData):
        given = TradingConfig(**settings)
        market = market_from_frame(market, symbols=given.symbols or None, **given.reading())
    elif market is not None and TradingConfig(**settings).form() != BarForm():
        raise UserError(
            "timeframe, session, timezone and adjust_splits apply when bars are read; pass a path or a data frame, or "
            "leave them out."
        )
    return TradedMarket(TradingConfig(**settings), market=market)


for _name, _kind in _KINDS.items():
    gymnasium.register(_name, entry_point="ml_pipeline.trading.gym_ids:make_env", kwargs={"kind": _kind})


Config = TradingConfig | Mapping[str, Any] | str | Path


class FastTrainingEnv(FastTradingEnv):
    """A `FastTradingEnv` that passes once through the data, or through `episode_length` bars if `cfg` sets it.

    data: a path, a pandas or polars frame, `MarketData`, or None for the built-in market.
    cfg: a `TradingConfig`, or the configuration of a whole training, of which only trading settings are used: the path
    of a settings file, or a mapping, in sections (`reward_config`, `portfolio_config`, `lookback_window`, ...) or flat.
    features: names of features, which replace those of `cfg`.
    split: "all" bars, or the "train", "validation" or "test" split. Features are scaled by the training split.
    reward: an object or its class, which replaces the reward of `cfg`.
    Raises UserError if the data or a setting is invalid.

    >>> env = FastTrainingEnv(None, {"reward_config": {"type": "fast_profit_reward"}}, ["rsi_14", "ema_distance_20"])
    >>> env.observation_space.shape
    (3,)
    """

    # Declares that this class adds no state that a step changes.
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
        traded = traded_on(data, settings)
        length = {"episode_length": None} if "episode_length" not in settings else {}
        settings = {**traded.training_settings(), **length, **_own(reward)}
        super().__init__(traded.bars_of(split), traded.rules, **settings)


class StatefulTradingEnv(stateful.StatefulTradingEnv):
    """A `StatefulTradingEnv` that passes once through the data, with the arguments of `FastTrainingEnv`.

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
        traded = traded_on(data, _settings_of(cfg, features))
        settings = {**traded.training_settings(), "episode_length": None, **_own(reward)}
        super().__init__(traded.bars_of(split), traded.rules, **settings, render_mode=render_mode)


class TradingEnv(StatefulTradingEnv):
    """`StatefulTradingEnv` under the name of existing code.

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
    """The given trading settings, by their names in `TradingConfig`."""
    if isinstance(cfg, TradingConfig):
        settings = {each.name: getattr(cfg, each.name) for each in fields(cfg)}
    else:
        settings = _read(cfg or {})
    if features is not None:
        settings["features"] = features if isinstance(features, str) else tuple(features)
    return settings


def _read(cfg: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    sections = {**TRADING_SECTIONS, "lookback_window": same("window")}  # a key of stock_env, allowed at the top as well
    return part_of_whole(cfg, sections, get_type_hints(TradingConfig))
