"""What every feed must do, by a growing file, a folder of such files, and a Parquet file that is replaced."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl
import pytest

from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.testing.feeds import FIRST, FeedContract, minutes_market
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import Reading
from tests.live.feeds.growing_files import SECOND, Clock
from tests.live.feeds.markets import LONG_HEADER, append_long, rows_of, write_long


@contextmanager
def following(path: Path, market: MarketData) -> Iterator[GrowingFileFeed]:
    """The feed of a file with the first bars, which was opened at their close; by its clock all are over now."""
    times = market.timing.closes(market.times[[FIRST - 1, -1]])
    clock = Clock(times[0])
    with closing(GrowingFileFeed(path, Reading(market.symbols), FeedConfig(follow=path), clock=clock)) as feed:
        clock.now = times[1] + 60 * SECOND
        yield feed


class TestGrowingFile(FeedContract):
    market = minutes_market(n_symbols=3, absent=0.3, seed=5)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "prices.csv"

    @contextmanager
    def open_feed(self, market):
        bars = list(bar_sets_of(market))
        write_long(self.path, bars[:FIRST], market.symbols)
        with following(self.path, market) as feed:
            append_long(self.path, bars[FIRST:], market.symbols)
            yield feed


class TestGrowingFolder(TestGrowingFile):
    @contextmanager
    def open_feed(self, market):
        folder = self.path.parent / "prices"
        folder.mkdir()
        bars = list(bar_sets_of(market))

        def write(of: list[BarSet], mode: str) -> None:
            for symbol in market.symbols:
                with (folder / f"{symbol}.csv").open(mode) as file:
                    file.write(LONG_HEADER if mode == "w" else "")
                    file.writelines(row for each in of for row in rows_of(each, market.symbols) if symbol in row)

        write(bars[:FIRST], "w")
        with following(folder, market) as feed:
            write(bars[FIRST:], "a")
            yield feed


class TestReplacedParquet(TestGrowingFile):
    @contextmanager
    def open_feed(self, market):
        file = self.path.with_suffix(".parquet")
        bars = list(bar_sets_of(market))

        def write(of: list[BarSet]) -> None:
            write_long(self.path, of, market.symbols)
            pl.read_csv(self.path, try_parse_dates=True).write_parquet(file)

        write(bars[:FIRST])
        with following(file, market) as feed:
            write(bars)
            yield feed
