"""The bars of a retraining: those of the session, in a file that `train` reads, and earlier ones."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import lasting
from ml_pipeline.runtime.files import written_whole
from ml_pipeline.trading.configured_market import load_configured_market
from ml_pipeline.trading.market.bar_set import bid_and_ask
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.timeframes import Timing
from ml_pipeline.trading.market.times import as_text
from ml_pipeline.trading.settings import TradingConfig

if TYPE_CHECKING:
    import polars as pl


_PRICES = ("open", "high", "low", "close", "volume")


def write_bars(market: MarketData, path: Path, *, before: MarketData | None = None) -> None:
    """Write a market's bars, all or none: one row per bar of a symbol, in order of time.

    before: earlier bars of the same kind; only columns of the market are written.
    Quotes are written as bid and ask around the close. Raises OSError if the file cannot be written.
    """
    import polars as pl

    frame = _frame(market)
    if before is not None:
        frame = pl.concat([_frame(before).select(frame.columns), frame])
    with written_whole(path) as file:
        frame.write_parquet(file)


def _frame(market: MarketData) -> "pl.DataFrame":
    import polars as pl

    rows, assets = np.nonzero(market.tradable)
    tables = {name: getattr(market, name)[rows, assets] for name in _PRICES}
    if market.half_spread is not None:
        bid, ask = bid_and_ask(tables["close"], market.half_spread[rows, assets])
        tables |= {"bid": bid, "ask": ask}
    return pl.DataFrame(
        {
            f"{market.timing.stamped}_time": market.times[rows].astype("datetime64[ns]"),
            "symbol": np.array(market.symbols)[assets],
            **tables,
            **{name: column[rows, assets] for name, column in market.columns.items()},
        }
    )


def reading(trading: TradingConfig, market: MarketData, path: Path) -> TradingConfig:
    """The settings with this file as data: its bars already have their final length, session and splits."""
    return replace(
        trading,
        data=path,
        symbols=market.symbols,
        columns={},
        date_order=None,
        bar_time=market.timing.stamped,
        timeframe=None,
        adjust_splits=False,
        drop_bad_rows=False,
        periods_per_year=market.periods_per_year,
    )


def add_earlier_bars(trading: TradingConfig, earlier: TradingConfig, *, n_own: int, most: int | None) -> None:
    """Add the bars of `earlier` that precede the first of `trading.data` to the beginning of that file.

    n_own: number of the session's bars; if the file has more, earlier ones were added before. most: number of latest
    earlier bars to add; None: all. No bar occurs twice: from the first bar of the session on, only its bars are used.
    Raises UserError if the bars are of another kind, or none is earlier.
    """
    assert trading.data is not None
    own = load_configured_market(trading)
    if own.n_bars > n_own:
        return
    before = _market(earlier, own.symbols)
    stop = int(np.searchsorted(before.times, own.times[0]))
    if not stop:
        raise UserError(
            f"retrain_data must have bars before the session's first, at {as_text(own.times[0])}, but {earlier.data} "
            f"begins at {as_text(before.times[0])}; leave it out, or name earlier bars."
        )
    if before.timing != own.timing:
        raise UserError(
            f"retrain_data must have the same bars as the session, {_kind(own.timing)}, but {earlier.data} has bars "
            f"{_kind(before.timing)}; name bars of the same kind."
        )
    lacking = sorted({*own.columns} - {*before.columns})
    if lacking or (own.half_spread is None) != (before.half_spread is None):
        what = ", ".join(lacking) or "bid and ask in only one of the two"
        raise UserError(
            f"retrain_data must have the columns of the session's bars, but {earlier.data} differs in {what}."
        )
    first = 0 if most is None else max(0, stop - most)
    write_bars(own, Path(trading.data), before=before.bars(first, stop))


def _market(earlier: TradingConfig, symbols: tuple[str, ...]) -> MarketData:
    """The bars of these symbols. In a file of one symbol the name may differ, for example the name of the file."""
    market = load_configured_market(replace(earlier, symbols=()))
    if len(symbols) == len(market.symbols) == 1:
        return replace(market, symbols=symbols)
    missing = [symbol for symbol in symbols if symbol not in market.symbols]
    if missing:
        raise UserError(f"retrain_data must have each symbol of the session, but {earlier.data} lacks {missing[0]}.")
    return market.select(symbols)


def _kind(timing: Timing) -> str:
    return f"of {lasting(timing.length / 1e9)} by the time when they {timing.stamped}"
