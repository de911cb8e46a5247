"""The layouts of files that common sources of market data write, by name.

A file with a header is recognized by its titles; `market.columns` knows what they mean. A file without a header is
recognized by the cells of its first rows.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ml_pipeline.trading.market.times import BarTime


class Source(NamedTuple):
    """A layout. titles: of a header, as they are written; a file may have more. rows: the titles of a file without one.

    separator: of such a file; None: any. zone: how its times are meant. bar_time: what its times are, if it documents
    that. volume: the title of the column to take for the volume, if there are several.
    """

    name: str
    titles: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    separator: str | None = None
    zone: str = ""
    bar_time: BarTime | None = None
    volume: str | None = None


_OHLC = ("open", "high", "low", "close")
_BINANCE = (
    *("open_time", *_OHLC, "volume", "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
_SERVER = "in the time of the broker's server, which the file does not name"
_UNKNOWN = "in a zone that the file does not name"

# The more particular layout first. Where each is documented:
# Binance: github.com/binance/binance-public-data. Kraken: support.kraken.com, "Downloadable historical OHLCVT data".
# NinjaTrader: its help, "Importing". HistData: histdata.com, "Detailed file specification". MetaTrader 5: its help,
# "Symbols". Interactive Brokers: TWS API, "Historical bars". The others: the titles of their downloads.
SOURCES = (
    Source("Binance klines", rows=_BINANCE, zone="in UTC", bar_time="open"),
    Source("Binance klines", _BINANCE[:7], zone="in UTC", bar_time="open"),
    Source("Binance klines", ("Open time", "Quote asset volume", "Number of trades"), zone="in UTC", bar_time="open"),
    Source("Kraken OHLCVT", rows=("unix", *_OHLC, "volume", "trades"), zone="in UTC", bar_time="open"),
    Source(
        "MetaTrader 5",
        ("<DATE>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<TICKVOL>", "<VOL>", "<SPREAD>"),
        zone=_SERVER,
        bar_time="open",
        volume="<TICKVOL>",
    ),
    Source(
        "MetaTrader 4 or HistData",
        rows=("date", "time", *_OHLC, "volume"),
        separator=",",
        zone="in the time of the broker's server, or in EST all year if they are of HistData",
        bar_time="open",
    ),
    Source("NinjaTrader or HistData", rows=("datetime", *_OHLC, "volume"), separator=";", zone=_UNKNOWN),
    Source("Stooq", ("<TICKER>", "<PER>", "<DATE>", "<TIME>", "<OPEN>", "<CLOSE>"), zone=_UNKNOWN),
    Source("Stooq", ("Data", "Otwarcie", "Najwyzszy", "Najnizszy", "Zamkniecie"), zone=_UNKNOWN),
    Source("Dukascopy", ("Gmt time", "Open", "High", "Low", "Close", "Volume"), zone="in UTC", bar_time="open"),
    Source("Dukascopy", ("Local time", "Open", "High", "Low", "Close", "Volume"), bar_time="open"),
    Source("Dukascopy", ("Time (EET)", "Open", "High", "Low", "Close"), zone="in EET", bar_time="open"),
    Source("CryptoDataDownload", ("unix", "date", "symbol", "open", "close"), zone="in UTC", bar_time="open"),
    Source("Interactive Brokers", ("date", *_OHLC, "volume", "average", "barCount"), bar_time="open"),
    Source("Interactive Brokers", ("date", *_OHLC, "volume", "wap", "count"), bar_time="open"),
    Source("Alpha Vantage", ("timestamp", *_OHLC, "adjusted_close", "dividend_amount"), zone="in New York time"),
    Source("Investing.com", ("Date", "Price", "Open", "High", "Low", "Vol.", "Change %"), zone=_UNKNOWN),
    Source("Nasdaq", ("Date", "Close/Last", "Volume", "Open", "High", "Low")),
    Source("Yahoo Finance or yfinance", ("Date", "Open", "High", "Low", "Close", "Adj Close", "Volume")),
    Source("yfinance", ("Datetime", "Open", "High", "Low", "Close", "Volume"), bar_time="open"),
    Source("yfinance", ("Date", "Open", "High", "Low", "Close", "Volume", "Dividends", "Stock Splits")),
    Source("Stooq or yfinance", ("Date", "Open", "High", "Low", "Close", "Volume")),
    Source("TradingView", ("time", *_OHLC, "Volume"), zone="in UTC, as Unix times or with an offset", bar_time="open"),
    Source("CoinGecko", ("snapped_at", "price", "market_cap", "total_volume"), zone="in UTC"),
)

_NUMBER = r"[-+]?(\d+([.,]\d*)?|[.,]\d+)(e[-+]?\d+)?"
_TIME = (
    r"(19|20)\d\d([-./]?\d\d?){2}([T ]+\d\d?:?\d\d.*)?|\d\d?[-./]\d\d?[-./](19|20)?\d\d([T ]+\d\d?:?\d\d.*)?"
    r"|\d{9,19}(\.\d+)?"
)
_CLOCK = r"\d\d?:\d\d(:\d\d(\.\d+)?)?|\d{6}"


def source_of(titles: Sequence[str], *, has_header: bool) -> Source | None:
    """The source whose titles these are; of a file without a header, those that `headerless` gave it."""
    if not has_header:
        return next((source for source in SOURCES if source.rows and source.rows == tuple(titles)), None)
    return next((source for source in SOURCES if source.titles and {*source.titles} <= {*titles}), None)


def headerless(rows: Sequence[Sequence[str]], separator: str) -> tuple[str, ...] | None:
    """Titles for a table whose first row holds a bar and no titles; None if the first row is a header.

    The titles are "1", "2", ... if the rows, cells as text, are none of `SOURCES` and no time, open, high, low, close
    and volume either.
    """
    if not rows or not _is_bar(rows[0]):
        return None
    n = len(rows[0])
    known = [source.rows for source in SOURCES if source.rows and source.separator in (None, separator)]
    plain = [("time", *_OHLC, "volume"), ("time", *_OHLC), ("date", "time", *_OHLC, "volume"), ("date", "time", *_OHLC)]
    for titles in (*known, *plain):
        if len(titles) == n and all(_fits(row, titles) for row in rows if len(row) == n):
            return titles
    return tuple(str(i + 1) for i in range(n))


def _is_bar(cells: Sequence[str]) -> bool:
    """Whether a row has no title: every cell is a number, a time or empty, or a symbol beside two numbers or more."""
    filled = [cell for cell in cells if cell]
    values = [cell for cell in filled if re.fullmatch(f"{_NUMBER}|{_TIME}|{_CLOCK}", cell, re.IGNORECASE)]
    return len(values) >= 2 and len(filled) - len(values) <= (len(values) >= 4)


def _fits(cells: Sequence[str], titles: Sequence[str]) -> bool:
    """Whether a row has these columns: times where they are expected, and prices that a bar can have."""
    row = dict(zip(titles, cells, strict=True))
    for title in ("date", "time", "datetime", "unix", "open_time", "close_time"):
        pattern = _CLOCK if title == "time" and "date" in row else _TIME
        if title in row and not re.fullmatch(pattern, row[title]):
            return False
    if "unix" in row and not row["unix"].isdecimal():
        return False
    try:
        open, high, low, close = (float(row[title].replace(",", ".")) for title in _OHLC)
    except ValueError:
        return False
    between = all(a <= b for a, b in pairwise((low, min(open, close), max(open, close), high)))
    return between and low > 0
