"""Small markets, and the files and bars that are made of them."""

from pathlib import Path

from ml_pipeline.trading.market.bar_set import BarSet


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
