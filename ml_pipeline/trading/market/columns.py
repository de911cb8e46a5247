"""Recognize the meaning of each column of a market file, and the source of the file, by the titles of common exports.

A file with a header is recognized by its titles, and a file without one by the cells of its first rows.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, get_args

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.trading.market.times import BarTime, DateOrder, without_zone, zone_in

# Feature columns in the data begin with this.
FEATURE_PREFIX = "feature_"
# Possible titles of a column by meaning, letters and digits only, most common first.
_NAMES = {
    "time": (
        *("datetime", "timestamp", "gmttime", "utctime", "time", "date", "localtime", "opentime", "candlebegintime"),
        *(
            "unix",
            "unixtime",
            "epoch",
            "ts",
            "t",
            "dt",
            "day",
            "closetime",
            "snappedat",
            "data",
            "datum",
            "windowstart",
        ),
    ),
    "symbol": ("symbol", "ticker", "tic", "asset", "pair", "instrument", "coin", "sym", "secid"),
    "open": (
        "open",
        "o",
        "openprice",
        "priceopen",
        "openingprice",
        "firstprice",
        "otwarcie",
        "erster",
        "eroffn",
        "eroffnung",
    ),
    "high": ("high", "h", "highprice", "pricehigh", "max", "maxprice", "najwyzszy", "hoch"),
    "low": ("low", "l", "lowprice", "pricelow", "min", "minprice", "najnizszy", "tief"),
    "close": (
        *("close", "c", "closeprice", "priceclose", "closelast", "price", "last", "lastprice", "closingprice"),
        *(
            "settle",
            "settlement",
            "settleprice",
            "settlementprice",
            "pxlast",
            "zamkniecie",
            "schlusskurs",
            "schluss",
            "zuletzt",
        ),
    ),
    "adjusted": ("adjclose", "adjustedclose", "closeadj", "closeadjusted", "adjcp", "adjcloseprice"),
    "bid": ("bid", "closebid", "bidclose", "bidprice"),
    "ask": ("ask", "closeask", "askclose", "askprice", "offer"),
    "volume": (
        *("volume", "vol", "v", "tickvol", "tickvolume", "volumebase", "realvolume", "totalvolume", "basevolume"),
        *("wolumen", "stuecke", "tradevolume", "tradedvolume", "sharevolume"),
    ),
}
_TRADED = (
    "(?:trade|trading|bar|session|market|exchange|quote|event|candle|kline|period|price|local|server|start|begin|end|"
    "open|close|utc|gmt|unix|epoch)"
)
# Other names of times: Trade Date, timestamp_utc, Bar Start Time, unix_ms.
_TIME = re.compile(
    rf"{_TRADED}*(?:datetime|timestamp|time|date|epoch|unix|day|ts|utc|gmt)"
    r"(?:utc|gmt|ms|us|ns|s|sec|secs|seconds|millis|milliseconds|open|close|start|end)?"
)
_OPENS, _CLOSES = re.compile(r"open|start|begin"), re.compile(r"close|end")
# Titles of a column with the date alone, if the time of day is in another column.
_DAYS = ("date", "tradedate", "tradingdate", "day", "dtyyyymmdd", "datum")
_TIMES_OF_DAY = ("time", "tradetime", "timeofday", "clock", "zeit")
# pandas exports leave the title of the index empty; it is the time only if no other column is.
_INDEX = ("", "unnamed0", "index")
_PRICES = r"open|high|low|close|bid|ask|volume|adj[ _]?close|feature_\w+"
_SYMBOL_FIRST = re.compile(rf"^(?P<symbol>.+)[:_./| -](?P<field>{_PRICES})$", re.IGNORECASE)
_SYMBOL_LAST = re.compile(rf"^(?P<field>{_PRICES})[:_./| -](?P<symbol>.+)$", re.IGNORECASE)
# Meanings that `columns` may name besides features; "date" is the day if `time` is the time of day.
MEANINGS = ("time", "date", *(name for name in _NAMES if name != "time"))
_LEFT_OUT = "none"


class Dialect(NamedTuple):
    """User settings for reading a table.

    columns: column titles by meaning; "none" leaves a meaning out. date_order: order of day, month and year.
    """

    columns: tuple[tuple[str, str], ...] = ()
    date_order: DateOrder | None = None


def make_dialect(columns: Mapping[str, str], date_order: DateOrder | None) -> Dialect:
    """The dialect of the settings `columns` and `date_order`. Raises UserError for an unknown meaning or order."""
    for meaning in columns:
        if meaning not in MEANINGS and not meaning.startswith(FEATURE_PREFIX):
            known = [*MEANINGS, f"{FEATURE_PREFIX}NAME"]
            raise UserError(f'columns cannot name a column "{meaning}". {nearest(meaning, known)}')
    if date_order is not None:
        check_choice("date_order", date_order, get_args(DateOrder))
    return Dialect(tuple(columns.items()), date_order)


@dataclass(frozen=True)
class Layout:
    """Column titles of a table by meaning.

    time: one column, or a date and a time of day to be joined. symbol: the symbol column of a table in long format.
    fields: for each asset, the column names of its "open", "high", "low", "close", "adjusted", "bid", "ask", "volume"
    and "feature_.."; it always has "close", or both "bid" and "ask". A table of one asset, or in long format, has one
    asset named "".
    """

    time: tuple[str, ...]
    symbol: str | None = None
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    documented_bar_time: BarTime | None = None

    @property
    def bar_time(self) -> BarTime | None:
        """Whether times mark the open or the close of bars, if the column title or the file's source states it."""
        name = _plain(self.time[0]) if len(self.time) == 1 else ""
        opens, closes = (bool(_TIME.fullmatch(name) and word.search(name)) for word in (_OPENS, _CLOSES))
        if opens == closes:
            return self.documented_bar_time
        return "open" if opens else "close"

    @property
    def zone(self) -> str | None:
        """The time zone in the title of the time column, as `zone_in`, which may raise UserError."""
        return next((zone for title in self.time if (zone := zone_in(title))), None)


def find_layout(columns: Sequence[str], chosen: Mapping[str, str] | None = None) -> Layout:
    """The meaning of the columns. `time` or `fields` is empty if no such column was recognized.

    chosen: the user's titles by meaning, as in `Dialect`. Raises UserError if there is no such column.

    >>> find_layout(["Gmt time", "Open", "Close", "Adj Close"]).fields
    {'': {'open': 'Open', 'close': 'Close', 'adjusted': 'Adj Close'}}
    >>> sorted(find_layout(["", "BTC:close", "ETH:close", "ETH:volume"]).fields)
    ['BTC', 'ETH']
    >>> find_layout(["stamp", "px", "RSI"], {"time": "stamp", "close": "px", "feature_rsi": "RSI"})
    Layout(time=('stamp',), symbol=None, fields={'': {'close': 'px', 'feature_rsi': 'RSI'}}, documented_bar_time=None)
    """
    chosen = dict(chosen or {})
    left_out = {meaning for meaning, title in chosen.items() if title == _LEFT_OUT and title not in columns}
    for title in (title for meaning, title in chosen.items() if meaning not in left_out and title not in columns):
        raise UserError(f'columns names "{title}", but there is no such column. {nearest(title, columns)}')
    plain = {_plain(name): name for name in reversed(columns)}
    found = {
        meaning: name for meaning in _NAMES if (name := next((plain[n] for n in _NAMES[meaning] if n in plain), None))
    }
    found |= {name: name for name in columns if name.startswith(FEATURE_PREFIX)}
    found |= {meaning: title for meaning, title in chosen.items() if meaning not in left_out}
    times = _times(columns, plain, found, chosen)
    symbol = found.pop("symbol", None)
    if "adjusted" in found and "close" not in found and "close" not in left_out:
        found["close"] = found.pop("adjusted")
    volumes = [name for name in columns if _plain(name).startswith("volume")]
    if volumes:
        found.setdefault("volume", volumes[0])
    found = {meaning: title for meaning, title in found.items() if meaning not in left_out}
    if _has_price(found):
        return Layout(times, None if "symbol" in left_out else symbol, {"": found})
    return Layout(times, None, _wide_fields(columns))


def _times(
    columns: Sequence[str], plain: Mapping[str, str], found: dict[str, str], chosen: Mapping[str, str]
) -> tuple[str, ...]:
    """Remove the time column, or the columns of date and time of day, from `found` and return them."""
    time, date = found.pop("time", None), found.pop("date", None)
    if date is not None:
        return (date, time) if "time" in chosen and time is not None else (date,)
    if "time" in chosen and time is not None:
        return (time,)
    day = next((plain[name] for name in _DAYS if name in plain), None)
    time_of_day = next((plain[name] for name in _TIMES_OF_DAY if name in plain), None)
    if day is not None and time_of_day is not None:
        return day, time_of_day
    others = [name for name in columns if _TIME.fullmatch(_plain(name)) and name not in found.values()]
    others.sort(key=lambda name: _CLOSES.search(_plain(name)) is not None)  # of two, the opening
    index = next((plain[name] for name in _INDEX if name in plain), None)
    return tuple(name for name in (time, *others, index) if name is not None)[:1]


def is_usual(name: str) -> bool:
    """Whether a column title is known, even if another column with that meaning is read instead."""
    plain = _plain(name)
    return (
        plain in _INDEX
        or plain.startswith("volume")
        or any(plain in names for names in _NAMES.values())
        or _TIME.fullmatch(plain) is not None
    )


def is_time(name: str) -> bool:
    """Whether a column of this name holds times."""
    plain = _plain(name)
    return plain in _NAMES["time"] or _TIME.fullmatch(plain) is not None


def _wide_fields(columns: Sequence[str]) -> dict[str, dict[str, str]]:
    """The fields of a table in wide format, by symbol, for the symbols that have a close."""
    fields: dict[str, dict[str, str]] = {}
    for name in columns:
        match = _SYMBOL_FIRST.match(name) or _SYMBOL_LAST.match(name)
        if match:
            meaning = match["field"] if match["field"].startswith("feature_") else match["field"].lower()
            fields.setdefault(match["symbol"], {})["adjusted" if meaning.startswith("adj") else meaning] = name
    return {symbol: found for symbol, found in fields.items() if _has_price(found)}


def _has_price(found: dict[str, str]) -> bool:
    return "close" in found or {"bid", "ask"} <= found.keys()


def _plain(name: str) -> str:
    """Only letters, without accents, and digits; without the column numbers of some exports and without time zones.

    >>> _plain("4. Close"), _plain("<TICKVOL>"), _plain("Adj Close**"), _plain("Eröffn."), _plain("Najwyższy")
    ('close', 'tickvol', 'adjclose', 'eroffn', 'najwyzszy')
    >>> _plain("Time (EET)"), _plain("Date (America/New_York)"), _plain("EST. CLOSE")
    ('time', 'date', 'estclose')
    """
    letters = unicodedata.normalize("NFKD", name.lower()).replace("\N{LATIN SMALL LETTER L WITH STROKE}", "l")
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"^\d+[a-z]?\. ", "", letters))
    rest = without_zone(name)
    if rest == name:
        return plain
    time = re.sub(r"[^a-z0-9]", "", rest.lower())
    return time if time in _NAMES["time"] or _TIME.fullmatch(time) else plain


class Source(NamedTuple):
    """A known file layout.

    titles: titles of its header; a file may have more. rows: titles for a file without a header. separator: of a file
    without a header; None: any. zone: the time zone in words. bar_time: what times mark, if the source documents it.
    volume: the title of the volume column, if there are several.
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

# More specific layouts first. Documentation:
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
_TIME_TITLE = (
    r"(19|20)\d\d([-./]?\d\d?){2}([T ]+\d\d?:?\d\d.*)?|\d\d?[-./]\d\d?[-./](19|20)?\d\d([T ]+\d\d?:?\d\d.*)?"
    r"|\d{9,19}(\.\d+)?"
)
_CLOCK = r"\d\d?:\d\d(:\d\d(\.\d+)?)?|\d{6}"


def source_of(titles: Sequence[str], *, has_header: bool) -> Source | None:
    """The source with these titles; for a file without a header, `headerless` provides them."""
    if not has_header:
        return next((source for source in SOURCES if source.rows and source.rows == tuple(titles)), None)
    return next((source for source in SOURCES if source.titles and {*source.titles} <= {*titles}), None)


def headerless(rows: Sequence[Sequence[str]], separator: str) -> tuple[str, ...] | None:
    """Titles for a table without a header; None if the first row is a header.

    The titles are "1", "2", ... if the rows match none of `SOURCES` and are not time, open, high, low, close, volume.
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
    """Whether a row has no title: its cells are numbers, times or empty, or a symbol next to four or more of these."""
    filled = [cell for cell in cells if cell]
    values = [cell for cell in filled if re.fullmatch(f"{_NUMBER}|{_TIME_TITLE}|{_CLOCK}", cell, re.IGNORECASE)]
    return len(values) >= 2 and len(filled) - len(values) <= (len(values) >= 4)


def _fits(cells: Sequence[str], titles: Sequence[str]) -> bool:
    """Whether a row has these columns: times where they are expected, and prices that a bar can have."""
    row = dict(zip(titles, cells, strict=True))
    for title in ("date", "time", "datetime", "unix", "open_time", "close_time"):
        pattern = _CLOCK if title == "time" and "date" in row else _TIME_TITLE
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
