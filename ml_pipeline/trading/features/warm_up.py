"""How many bars a session loads before its first decision."""

from collections.abc import Sequence

from ml_pipeline.trading.features.indicators import make_features
from ml_pipeline.trading.market.timeframes import timeframe_ns

# Averages such as EMA and RSI begin with a mean, and forget it in some multiple of their span.
_SPANS = 10
_LEAST = 500


def bars_to_warm_up(names: Sequence[str], *, window: int, length_ns: int) -> int:
    """Bars of `length_ns` that features and window need, with room for averages to forget how they began.

    A user's own function tells no span, and columns of the data need none: for these the usual number must do.

    >>> minute = 60 * 10**9
    >>> bars_to_warm_up(["rsi_14"], window=1, length_ns=minute)
    500
    >>> bars_to_warm_up(["rsi_14@1h"], window=4, length_ns=minute)
    8404
    """
    needed = 0
    for feature in (each for name in names for each in make_features(name)):
        longer = 1 if feature.timeframe is None else timeframe_ns(feature.timeframe) // length_ns
        needed = max(needed, _SPANS * feature.warm_up * max(longer, 1))
    return max(_LEAST, needed + window)
