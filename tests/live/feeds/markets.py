"""Small markets, and the files and bars that are made of them."""

from pathlib import Path

import numpy as np

from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.market.timeframes import Timing

MINUTE = np.timedelta64(60, "s")
BEGINS = np.datetime64("2024-03-01T14:30", "ns")


def minutes_market(n_bars: int = 12, n_symbols: int = 2, *, seed: int = 0, absent: float = 0.0) -> MarketData:
    """Bars of a minute from `BEGINS` on. absent: the part of the bars that a symbol does not have."""
    generator = np.random.default_rng(seed)
    shape = (n_bars, n_symbols)
    close = np.round(100 * np.exp(np.cumsum(generator.normal(0, 1e-3, shape), axis=0)), 4)
    open = np.round(close * np.exp(generator.normal(0, 5e-4, shape)), 4)
    high = np.maximum(open, close) + 0.01
    low = np.minimum(open, close) - 0.01
    missing = generator.random(shape) < absent
    missing[0] = missing[-1] = False
    times = BEGINS + np.arange(n_bars) * MINUTE
    volume = np.round(generator.random(shape) * 1_000, 2)
    tables = [np.where(missing, np.nan, values) for values in (close, open, high, low, volume)]
    close, open, high, low, volume = (table[~missing.all(axis=1)] for table in tables)
    return market_from_arrays(
        [f"S{i}" for i in range(n_symbols)],
        times[~missing.all(axis=1)],
        close,
        open=open,
        high=high,
        low=low,
        volume=volume,
        timing=Timing(60 * 10**9, "open"),
        source="minutes",
    )


def rows_of(bars: BarSet, symbols: tuple[str, ...]) -> list[str]:
    """Rows of a long CSV file, as `LONG_HEADER` names them."""
    return [
        f"{bars.time},{symbol},{bars.open[i]},{bars.high[i]},{bars.low[i]},{bars.close[i]},{bars.volume[i]}\n"
        for i, symbol in enumerate(symbols)
        if bars.present[i]
    ]


LONG_HEADER = "time,symbol,open,high,low,close,volume\n"


def write_long(path: Path, sets: list[BarSet], symbols: tuple[str, ...]) -> Path:
    path.write_text(LONG_HEADER + "".join(row for bars in sets for row in rows_of(bars, symbols)))
    return path


def append_long(path: Path, sets: list[BarSet], symbols: tuple[str, ...]) -> None:
    with path.open("a") as file:
        file.writelines(row for bars in sets for row in rows_of(bars, symbols))


def assert_same_bars(got: BarSet, expected: BarSet) -> None:
    """Every bit but whether they came late."""
    assert got.time == expected.time
    assert got.closed_at == expected.closed_at
    for name in ("open", "high", "low", "close", "volume", "fillable"):
        left, right = getattr(got, name), getattr(expected, name)
        if name == "volume":
            left, right = np.where(got.present, left, 0.0), np.where(expected.present, right, 0.0)
        np.testing.assert_array_equal(left, right, err_msg=f"{name} at {got.time}")
    if expected.half_spread is not None:
        np.testing.assert_array_equal(got.half_spread, expected.half_spread)
    assert got.columns.keys() == expected.columns.keys()
    for name, values in expected.columns.items():
        np.testing.assert_array_equal(got.columns[name], values)
