"""Bars from before a session, put before its own for a retraining."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import lasting
from ml_pipeline.live.retraining.bars_file import write_bars
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.timeframes import Timing
from ml_pipeline.trading.market.times import as_text
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import load_configured_market


def add_earlier_bars(trading: TradingConfig, earlier: TradingConfig, *, n_own: int, most: int | None) -> None:
    """Write the bars of `earlier` that lie before the first of `trading.data` into that file, before those.

    n_own: number of bars that the file has of the session; with more, they were added already. most: so many of the
    earlier bars, the latest; None: all. No bar is there twice: from the session's first one on, the session's count.
    Raises UserError where the bars are of another kind, or none is earlier.
    """
    assert trading.data is not None
    own = load_configured_market(trading)
    if own.n_bars > n_own:
        return
    before = _market(earlier, own.symbols)
    stop = int(np.searchsorted(before.times, own.times[0]))
    if not stop:
        raise UserError(
            f"retrain_data must hold bars before the session's first, of {as_text(own.times[0])}, but {earlier.data} "
            f"begins at {as_text(before.times[0])}; leave it out, or name earlier bars."
        )
    if before.timing != own.timing:
        raise UserError(
            f"retrain_data must hold bars as the session has them, {_kind(own.timing)}, but {earlier.data} has bars "
            f"{_kind(before.timing)}; name bars of the same kind."
        )
    lacking = sorted({*own.columns} - {*before.columns})
    if lacking or (own.half_spread is None) != (before.half_spread is None):
        what = ", ".join(lacking) or "bid and ask in only one of the two"
        raise UserError(f"retrain_data must hold what the session's bars hold, but {earlier.data} differs in {what}.")
    first = 0 if most is None else max(0, stop - most)
    write_bars(own, Path(trading.data), before=before.bars(first, stop))


def _market(earlier: TradingConfig, symbols: tuple[str, ...]) -> MarketData:
    """The bars of these symbols; a file of one symbol may call it otherwise, as where the name is the file's."""
    market = load_configured_market(replace(earlier, symbols=()))
    if len(symbols) == len(market.symbols) == 1:
        return replace(market, symbols=symbols)
    missing = [symbol for symbol in symbols if symbol not in market.symbols]
    if missing:
        raise UserError(f"retrain_data must hold each symbol of the session, but {earlier.data} lacks {missing[0]}.")
    return market.select(symbols)


def _kind(timing: Timing) -> str:
    return f"of {lasting(timing.length / 1e9)} by the time when they {timing.stamped}"
