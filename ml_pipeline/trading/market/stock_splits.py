"""Adjusts the bars before a stock split that a file's prices do not reflect."""

from dataclasses import replace

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.asset import PRICES
from ml_pipeline.trading.market.asset_bars import AssetBars
from ml_pipeline.trading.market.plausibility import find_splits
from ml_pipeline.trading.market.times import as_text


def with_splits_adjusted(bars: AssetBars) -> AssetBars:
    """The bars with prices before each split divided by its ratio and volumes multiplied by it; a notice for each."""
    fields, notices = dict(bars.fields), list(bars.notices)
    for split in find_splits(fields["open"], fields["close"]):
        for name, factor in (*((price, 1 / split.ratio) for price in PRICES), ("volume", split.ratio)):
            fields[name] = fields[name].copy()
            fields[name][: split.row] *= factor
        notices.append(
            f"{bars.symbol}: the {counted(split.row, 'bar')} before {as_text(bars.times[split.row])} "
            f"{'was' if split.row == 1 else 'were'} adjusted to a split "
            f"of {split}: prices / {split.ratio:g}, volumes x {split.ratio:g}"
        )
    return replace(bars, fields=fields, notices=notices)
