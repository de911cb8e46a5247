"""Entry: what a market file holds, and what is odd about it, with a remedy for each.

python -m ml_pipeline.trading.inspect_data prices.csv
python -m ml_pipeline.trading.inspect_data folder_of_files --picture market.png
"""

import argparse
import sys
from pathlib import Path

from ml_pipeline.config.errors import UserError, user_errors_exit
from ml_pipeline.trading.diagnosis import diagnose
from ml_pipeline.trading.market_data import MarketData, as_text
from ml_pipeline.trading.market_files import load_market


def main(argv: list[str]) -> int:
    """Print the description; return 0, or exit with code 2 after one sentence where the data cannot be read."""
    parser = argparse.ArgumentParser(prog="inspect_data", description="Say what market data hold, and what is odd.")
    parser.add_argument("path", type=Path, help="a CSV or Parquet file, or a folder with a file a symbol")
    parser.add_argument("--picture", type=Path, help="draw prices and volumes into this file")
    arguments = parser.parse_args(argv)
    with user_errors_exit("inspect_data"):
        market = load_market(arguments.path)
        print(describe(market, arguments.path))
        if arguments.picture is not None:
            draw_market(market, arguments.picture)
            print(f"\nDrawn to {arguments.picture}")
    return 0


def describe(market: MarketData, path: Path) -> str:
    """What `market`, loaded from `path`, holds and what is odd about it, line by line."""
    count = len(market.symbols)
    lines = [
        f"{market.source}: {count} symbol{'s' * (count > 1)}, {market.n_bars:,} bars from "
        f"{as_text(market.times[0])} to {as_text(market.times[-1])}",
        f"{market.calendar.reason} ({market.calendar.name}).",
        "Times were taken as when bars open; say --bar-time close where they are when bars close.",
        "",
    ]
    for a, symbol in enumerate(market.symbols):
        own = market.tradable[:, a]
        close = market.close[own, a]
        lines.append(
            f"  {symbol}: {own.sum():,} bars since {as_text(market.times[own][0])}, close from {close.min():g} to "
            f"{close.max():g}{'' if market.half_spread is None else ', with quotes'}"
        )
    if market.columns:
        lines.append(f"  own features: {', '.join(market.columns)}")
    if market.notices:
        lines += ["", "Mended while reading:", *(f"  {notice}" for notice in market.notices)]
    findings = diagnose(market, path)
    lines += ["", "Found:" if findings else "Nothing odd was found."]
    lines += [f"  {finding.symbol}: {finding.problem}\n    -> {finding.remedy}" for finding in findings]
    return "\n".join(lines)


def draw_market(market: MarketData, path: Path) -> None:
    """Closes, each as a multiple of its first, and the volumes beneath."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for a, symbol in enumerate(market.symbols):
        own = market.tradable[:, a]
        close = market.close[own, a]
        above.plot(market.times[own], close / close[0], linewidth=0.8, label=symbol)
        below.plot(market.times[own], market.volume[own, a], linewidth=0.5)
    above.set_yscale("log")
    above.set_ylabel("close, multiple of the first (log scale)")
    below.set_ylabel("volume")
    below.set_xlabel("date")
    above.set_title(f"{market.source}: {market.n_bars:,} bars", loc="left", fontsize=10.5)
    if len(market.symbols) <= 12:
        above.legend(frameon=False, ncols=min(len(market.symbols), 6))
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        remedy = "name a .png in a folder that is there"
        raise UserError(f"The picture cannot be written to {path}: {error}; {remedy}.") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
