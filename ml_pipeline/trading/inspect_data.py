"""Command: describe market data, and list problems in them with a remedy for each.

ml-pipeline inspect-data prices.csv
ml-pipeline inspect-data folder_of_files --picture market.png
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import counted
from ml_pipeline.monitoring.console import entry
from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes, style_money_axis
from ml_pipeline.trading.market.columns import Dialect, make_dialect
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.diagnosis import NOTHING_TO_DO, Finding, diagnose, layouts_of
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.symbol_files import files_of
from ml_pipeline.trading.market.tables import Faults
from ml_pipeline.trading.market.timeframes import make_clock
from ml_pipeline.trading.market.times import BarTime, DateOrder, as_text

# Most symbols that are named, and most that are drawn in different colors.
_MOST_NAMED = 3
_MOST_COLORS = 10
_PLAIN = Dialect()


@dataclass(frozen=True, kw_only=True)
class InspectionConfig:
    """The data to describe, and where to draw them."""

    path: tyro.conf.Positional[Path]
    """CSV or Parquet file, or folder with one file per symbol."""
    columns: dict[str, str] = field(default_factory=dict)
    """Titles of the columns, if they are not the usual ones, as CONTENT=TITLE, such as time=timestamp_utc close=Last.
    In a file without a header, give column numbers from 1."""
    date_order: DateOrder | None = None
    """Order of day, month and year in dates such as 01/02/2024; none: inferred from the data."""
    bar_time: BarTime | None = None
    """Whether times in the data are those at which bars open, or close."""
    timeframe: str | None = None
    """Length of the bars to describe, such as 5m, 15m, 1h, 4h or 1d, built from the shorter bars of the data; none: the
    bars of the data."""
    session: str | None = None
    """Trading hours, such as 09:30-16:00, in the given timezone; bars outside these hours are left out; none: all
    bars."""
    timezone: str | None = None
    """Time zone of trading hours and calendar days, such as America/New_York; none: UTC."""
    adjust_splits: bool = False
    """Adjust prices and volumes from before a stock split, if the data do not reflect the split."""
    all: bool = False
    """List every row that training would refuse; otherwise at most twenty of each kind."""
    picture: Path | None = None
    """Image file to draw prices and volumes into; none: no picture."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The flags of the command."""

    inspection: InspectionConfig


def main(argv: list[str], *, prog: str = "inspect_data") -> int:
    """Print the description; return 0, or 1 if the data have rows that training would refuse.

    Exits with code 2 and one sentence if the data cannot be read at all.
    """
    with entry(prog):
        description = COMMANDS["inspect-data"].sentence
        config = parse_settings(argv, CommandLine, prog=prog, description=description).inspection
        faults = Faults("list", all_rows=config.all)
        form = BarForm(config.adjust_splits, config.timeframe, make_clock(config.session, config.timezone))
        dialect = make_dialect(config.columns, config.date_order)
        market = load_market(config.path, bar_time=config.bar_time, form=form, faults=faults, dialect=dialect)
        print(describe(market, files_of(config.path), faults.sentences, dialect))
        if config.picture is not None:
            draw_market(market, config.picture)
            print(f"\nDrawn to {config.picture}")
    return 1 if faults.sentences else 0


def describe(
    market: MarketData, files: Sequence[Path] = (), refused: Sequence[str] = (), dialect: Dialect = _PLAIN
) -> str:
    """A description of `market`, which was loaded from `files`, and its problems.

    refused: sentences about rows that were left out.
    """
    lines = [
        f"{market.source}: {counted(len(market.symbols), 'symbol')}, {counted(market.n_bars, 'bar')} from "
        f"{as_text(market.times[0])} to {as_text(market.times[-1])}",
        f"{market.calendar.reason} ({market.calendar.name}).",
        *layouts_of(files, dialect),
        "",
    ]
    for a, symbol in enumerate(market.symbols):
        own = market.tradable[:, a]
        close = market.close[own, a]
        lines.append(
            f"  {symbol}: {counted(int(own.sum()), 'bar')} since {as_text(market.times[own][0])}, close from "
            f"{close.min():g} to {close.max():g}{'' if market.half_spread is None else ', with quotes'}"
        )
    if market.columns:
        lines.append(f"  own features: {', '.join(market.columns)}")
    if refused:
        lines += [
            "",
            "Training refuses these rows, or leaves them out with --drop-bad-rows, as here:",
            *(f"  {sentence}" for sentence in refused),
        ]
    if market.notices:
        lines += ["", "Changes while reading:", *(f"  {notice}" for notice in market.notices)]
    findings = diagnose(market, files, dialect)
    severe = _by_symbols([finding for finding in findings if finding.severe])
    others = _by_symbols([finding for finding in findings if not finding.severe])
    for title, found in (("Problems that make results wrong:", severe), ("Other findings:", others)):
        if found:
            lines += ["", title]
            lines += [f"  {names}: {problem}\n    -> {remedy}" for (problem, remedy), names in found.items()]
    if not findings:
        lines += ["", "No problems were found."]
    if not refused and all(finding.remedy.startswith(NOTHING_TO_DO) for finding in findings):
        lines += [*([""] if findings else []), "Nothing needs to be done."]
    return "\n".join(lines)


def _by_symbols(findings: Sequence[Finding]) -> dict[tuple[str, str], str]:
    """The symbols of each (problem, remedy), so that a problem of several symbols is listed once."""
    symbols: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        symbols.setdefault((finding.problem, finding.remedy), []).append(finding.symbol)
    return {finding: _listed(names) for finding, names in symbols.items()}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{', '.join(names[:2])} and {len(names) - 2} others"


def draw_market(market: MarketData, path: Path) -> None:
    """Draw closes as multiples of the first close into `path`, and volumes, if there are any, below them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(10, 6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = 2 if market.volume.any() else 1
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=[3, 1][:panels])[:, 0]
    few = len(market.symbols) <= _MOST_COLORS
    multiples = []
    for a, symbol in enumerate(market.symbols):
        own = market.tradable[:, a]
        multiples.append(market.close[own, a] / market.close[own, a][0])
        look: dict[str, Any] = {"label": symbol} if few else {"color": AGENT_COLOR, "alpha": 0.35}
        axes[0].plot(market.times[own], multiples[-1], linewidth=0.9, **look)
        if panels == 2:
            axes[1].plot(market.times[own], market.volume[own, a], linewidth=0.5, alpha=0.7)
            axes[1].yaxis.set_major_formatter(EngFormatter(sep=" "))
            axes[1].set_ylabel("volume")
    style_money_axis(axes[0], multiples, "close, multiple of the first")
    if not few:
        axes[0].plot([], [], color=AGENT_COLOR, alpha=0.35, label=f"each of {len(market.symbols)} symbols")
    axes[0].legend(frameon=False, ncols=6, loc="lower left", bbox_to_anchor=(0, 1))
    figure.suptitle(f"{market.source}: {market.n_bars:,} bars", x=0.012, ha="left", fontsize=10.5)
    locator = AutoDateLocator()
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    for panel in axes:
        style_axes(panel)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        remedy = "name a .png file in an existing folder"
        raise UserError(f"The picture cannot be written to {path}: {error}; {remedy}.") from error
