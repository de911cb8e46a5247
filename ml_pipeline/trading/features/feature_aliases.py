"""What configurations of other libraries call our features: EMA_10, ema10, rsi and returns are ema_10, rsi_14 ..."""

import re

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.trading.features.formulas import SPANNED
from ml_pipeline.trading.features.indicators import feature_examples, is_function, make_features

# Names without a span, and those that are called otherwise.
_OURS = {
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
_SPANNED = {"ma": "sma", "std": "volatility", "return": "log_return", "returns": "log_return", "roc": "log_return"}


def our_feature(name: str) -> str:
    """The name of a feature here, for one of ours or a familiar one. Raises UserError, with the nearest, for others.

    >>> [our_feature(name) for name in ("ema:10", "RSI_14", "sma20", "rsi", "returns", "std_30", "rsi_14@1h")]
    ['ema_10', 'rsi_14', 'sma_20', 'rsi_14', 'log_return_1', 'volatility_30', 'rsi_14@1h']
    """
    is_own = is_function(name) and not re.fullmatch(r"\w+:\d+", name)
    ours = name if is_own else _translated(name)
    try:
        make_features(ours)
    except UserError as error:
        if "There is no feature" not in str(error):
            raise
        known = [*feature_examples(), *_OURS]
        raise UserError(f'There is no feature "{name}". {nearest(name, known)}') from None
    return ours


def _translated(name: str) -> str:
    column, at, timeframe = name.partition("@")
    if column.startswith("feature_"):
        return name
    plain = re.sub(r"[\s:-]+", "_", column.strip()).lower()
    if (ours := _OURS.get(plain)) is not None:
        return f"{ours}{at}{timeframe}"
    if match := re.fullmatch(r"([a-z_]*[a-z])_?(\d+)", plain):
        word = _SPANNED.get(match[1], match[1])
        plain = f"{word}_{match[2]}" if word in SPANNED else plain
    return f"{plain}{at}{timeframe}"
