"""Trading sections of a settings file: `environment`, `stock_env`, rewards, accounts and data."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.sections import Flat, Reader, add, only, same, section
from ml_pipeline.trading.envs.rewards import reward_name, reward_parameters
from ml_pipeline.trading.features.formulas import SPANNED
from ml_pipeline.trading.features.indicators import feature_examples, is_function, make_features
from ml_pipeline.trading.settings import TradingConfig

# Largest trade_limit_percent in these files, as a fraction: 0.1 means 10 %.
_WHOLE = 1.0


def _named(reward: Any, source: Path) -> Flat:
    """reward: a name or a class."""
    try:
        return {"reward": reward_name(reward)}
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _reward(value: Any, source: Path) -> Flat:
    """type, reward_scaling and kwargs; reward_scaling multiplies a reward without such an argument."""
    read = section("reward_config", {name: same(name) for name in ("type", "reward_scaling", "kwargs")})
    found = read(value, source)
    if "type" not in found:
        raise UserError(f'{source}: reward_config needs a type, such as "fast_profit_reward".')
    name, arguments = _named(found["type"], source)["reward"], dict(found.get("kwargs") or {})
    flat: Flat = {"reward": name}
    if (scaling := found.get("reward_scaling")) is not None:
        if "reward_scaling" in reward_parameters(name):
            add(arguments, {"reward_scaling": scaling}, source)
        else:
            flat["reward_scale"] = scaling
    return {**flat, "reward_kwargs": arguments} if arguments else flat


def _fee(setting: str) -> Reader:
    """Read a cost (or equal costs per symbol) as a fraction of traded value, and convert it to basis points."""

    def read(value: Any, source: Path) -> Flat:
        costs = {*value} if isinstance(value, list) else {value}
        if len(costs) != 1:
            raise UserError(f"{source}: costs must be the same for all symbols, but got {value}.")
        return {setting: _number(setting, costs.pop(), source) * 10_000}

    return read


def _trade_limit(value: Any, source: Path) -> Flat:
    """Read a fraction, despite the name: 0.1 is 10 % of the equity."""
    fraction = _number("trade_limit_percent", value, source)
    if fraction > _WHOLE:
        raise UserError(
            f"{source}: trade_limit_percent in portfolio_config is a fraction, so 0.1 means 10 %, but got {value}."
        )
    return {"trade_limit_percent": fraction * 100}


def _trade_mode(value: Any, source: Path) -> Flat:
    modes = {"cont": "trade", "continuous": "trade", "discrete": "buy_hold_sell"}
    if value not in modes:
        raise UserError(f'{source}: trade_mode must be "cont" or "discrete", but got "{value}".')
    return {"action_mode": modes[value]}


def _number(name: str, value: Any, source: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{source}: {name} must be a number, but got {value!r}.")
    return float(value)


def _action_type(value: Any, source: Path) -> Flat:
    kinds = {"discrete": "discrete", "continuous": "target_weights"}
    if not isinstance(value, str) or value.lower() not in kinds:
        raise UserError(f'{source}: action_type must be "discrete" or "continuous", but got {value!r}.')
    return {"action_mode": kinds[value.lower()]}


def _features(value: Any, source: Path) -> Flat:
    if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(n, str) for n in value):
        raise UserError(
            f'{source}: observation_feature_cols must be a list such as ["rsi_14", "ema_10"], but got {value!r}.'
        )
    try:
        names = [our_feature(name) for name in value]
    except UserError as error:
        raise UserError(f"{source}: observation_feature_cols: {error}") from error
    for i, name in enumerate(names):
        if name in names[:i]:
            first = value[names.index(name)]
            same_as = "" if first == value[i] else f", which is the same as {first}"
            raise UserError(
                f"{source}: observation_feature_cols names {value[i]} twice{same_as}; name each feature once."
            )
    return {"features": names}


def _symbols(value: Any, source: Path) -> Flat:
    """Several symbols mean one account per symbol in such configurations."""
    if isinstance(value, str):
        value = [value]
    return {"symbols": list(value) if isinstance(value, tuple) else value, "per_symbol": True}


def _environment(value: Any, source: Path) -> Flat:
    """`environment: CartPole-v1` names a Gymnasium environment; a section configures one, or trading."""
    return {"env_id": value} if isinstance(value, str) else section("environment", _ENVIRONMENT)(value, source)


def _portfolio(value: Any, source: Path) -> Flat:
    """The account; by default, actions buy and sell, and short selling is off."""
    flat = section("portfolio_config", _PORTFOLIO)(value, source)
    return {"action_mode": "trade", "allow_short": False, **flat}


_PORTFOLIO: dict[str, Reader] = {
    "initial_cash": same("initial_cash"),
    "maintain_history": lambda value, source: {},  # training keeps no history, and an evaluation always does
    "buy_cost_pct": _fee("fee_bps"),
    "sell_cost_pct": _fee("sell_fee_bps"),
    "action_threshold": same("action_threshold"),
    "trade_limit_percent": _trade_limit,
    "trade_mode": _trade_mode,
    "max_exposure": same("max_gross"),
    "short_selling": same("allow_short"),
    "max_positions": only("max_positions", None),
    "turbulence_threshold": only("turbulence_threshold", None),
}
_ENVIRONMENT: dict[str, Reader] = {
    **{each.name: same(each.name) for each in fields(TradingConfig)},
    "observation_feature_cols": _features,
    "feature_cols": _features,
    "features": _features,
    "action_type": _action_type,
    "symbols": _symbols,
    "data_dir": same("data"),
    "data_path": same("data"),
    "initial_balance": same("initial_cash"),
    "initial_capital": same("initial_cash"),
    "transaction_cost": _fee("fee_bps"),
    "transaction_cost_pct": _fee("fee_bps"),
    "commission": _fee("fee_bps"),
    "slippage": _fee("slippage_bps"),
    "window_size": same("window"),
    "lookback_window": same("window"),
    "max_steps": same("episode_length"),
    "max_episode_steps": same("episode_length"),
    "reward": _named,
    "reward_type": _named,
    "reward_scaling": same("reward_scale"),
    "reward_config": _reward,
    "portfolio_config": _portfolio,
    "env_id": same("env_id"),
    "env_kwargs": same("env_kwargs"),
}
TRADING_SECTIONS: dict[str, Reader] = {
    "environment": _environment,
    "reward_config": _reward,
    "portfolio_config": _portfolio,
    "stock_env": section(
        "stock_env",
        {
            "reward_config": _reward,
            "portfolio_config": _portfolio,
            "lookback_window": same("window"),
            "turbulence_threshold": only("turbulence_threshold", None),
        },
    ),
    "feature_config": section("feature_config", {"features": same("features")}),
    "data_config": section(
        "data_config",
        {
            "path": same("data"),
            "symbols": same("symbols"),
            "columns": same("columns"),
            "date_order": same("date_order"),
            "validation_split": same("validation_fraction"),
        },
    ),
}


# Our features by their names in other libraries: names without a span, and different names.
_FEATURES = {
    "rsi": "rsi_14",
    "atr": "atr_14",
    "ema": "ema_20",
    "sma": "sma_20",
    "ma": "sma_20",
    "return": "log_return_1",
    "returns": "log_return_1",
    "log_return": "log_return_1",
    "log_returns": "log_return_1",
    "volatility": "volatility_20",
    "std": "volatility_20",
    "volume": "volume_zscore_20",
    "macd_hist": "macd",
    "macd_line": "macd",
    "hour": "time_of_day",
    "day_of_week": "time_of_week",
    "weekday": "time_of_week",
}
_SPANNED_FEATURES = {
    "ma": "sma",
    "std": "volatility",
    "return": "log_return",
    "returns": "log_return",
    "roc": "log_return",
}


def our_feature(name: str) -> str:
    """Our name of a feature, for our or a familiar name. Raises UserError, with the nearest name, for others.

    >>> [our_feature(name) for name in ("ema:10", "RSI_14", "sma20", "rsi", "returns", "std_30", "rsi_14@1h")]
    ['ema_10', 'rsi_14', 'sma_20', 'rsi_14', 'log_return_1', 'volatility_30', 'rsi_14@1h']
    """
    is_own = is_function(name) and not re.fullmatch(r"\w+:\d+", name)
    ours = name if is_own else _as_ours(name)
    try:
        make_features(ours)
    except UserError as error:
        if "There is no feature" not in str(error):
            raise
        known = [*feature_examples(), *_FEATURES]
        raise UserError(f'There is no feature "{name}". {nearest(name, known)}') from None
    return ours


def _as_ours(name: str) -> str:
    column, at, timeframe = name.partition("@")
    if column.startswith("feature_"):
        return name
    plain = re.sub(r"[\s:-]+", "_", column.strip()).lower()
    if (ours := _FEATURES.get(plain)) is not None:
        return f"{ours}{at}{timeframe}"
    if match := re.fullmatch(r"([a-z_]*[a-z])_?(\d+)", plain):
        word = _SPANNED_FEATURES.get(match[1], match[1])
        plain = f"{word}_{match[2]}" if word in SPANNED else plain
    return f"{plain}{at}{timeframe}"
