"""The bars of a market as a Parquet file that `train --data` reads, and the settings that read it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ml_pipeline.runtime.whole_file import written_whole
from ml_pipeline.trading.market.bar_set import bid_and_ask
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig

if TYPE_CHECKING:
    import polars as pl

_PRICES = ("open", "high", "low", "close", "volume")


def write_bars(market: MarketData, path: Path, *, before: MarketData | None = None) -> None:
    """Write a market's bars, whole or not at all: one row per symbol that has a bar, in order of time.

    before: bars of the same kind that come before them; of its columns, those of the market are written.
    Quotes are written as bid and ask around the close. Raises OSError where the file cannot be written.
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
    """The settings with this file as data: its bars have their length, their session and their splits already."""
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
