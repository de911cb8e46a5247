"""Where the bars of one asset are in a table, and the cells that are read from there."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.columns import Layout
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.tables import Table
from ml_pipeline.trading.market.times import ReadTimes

PRICES = ("open", "high", "low", "close")

Cells = dict[str, FloatArray]


@dataclass(frozen=True, eq=False)
class Asset:
    """Where the bars of an asset are in a table: rows, and columns by meaning."""

    symbol: str
    table: Table
    layout: Layout
    fields: dict[str, str]
    rows: NDArray[np.int64]
    read_times: ReadTimes  # of every row of the table

    @property
    def times(self) -> NDArray[np.datetime64]:
        """Of every row of the table, in UTC."""
        return self.read_times.utc


def only_rows(asset: Asset, cells: Cells, keep: NDArray[np.bool_]) -> tuple[Asset, Cells]:
    """The asset and its cells in the rows to keep."""
    if keep.all():
        return asset, cells
    return replace(asset, rows=asset.rows[keep]), {name: values[keep] for name, values in cells.items()}


def column_title(asset: Asset, name: str) -> str:
    """The name of the column in messages; in a wide table, it already contains the symbol."""
    title = asset.fields[name]
    return title if asset.symbol in title else f"{title} of {asset.symbol}"
