"""Finds out what each column of a market file means; it knows the spellings of common exports."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.trading.market.times import BarTime, DateOrder, without_zone, zone_in

# Feature columns in the data begin with this.
FEATURE_PREFIX = "feature_"
# Meaning of a column: its possible names, letters and digits only, the likeliest first.
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
# A day in a column of its own, beside the time of day in another.
_DAYS = ("date", "tradedate", "tradingdate", "day", "dtyyyymmdd", "datum")
_TIMES_OF_DAY = ("time", "tradetime", "timeofday", "clock", "zeit")
# pandas exports leave the name of the index empty; it is the time only if no other column is.
_INDEX = ("", "unnamed0", "index")
_PRICES = r"open|high|low|close|bid|ask|volume|adj[ _]?close|feature_\w+"
_SYMBOL_FIRST = re.compile(rf"^(?P<symbol>.+)[:_./| -](?P<field>{_PRICES})$", re.IGNORECASE)
_SYMBOL_LAST = re.compile(rf"^(?P<field>{_PRICES})[:_./| -](?P<symbol>.+)$", re.IGNORECASE)
# What `columns` may name besides features; "date" is the day if `time` is the time of day.
MEANINGS = ("time", "date", *(name for name in _NAMES if name != "time"))
_LEFT_OUT = "none"


class Dialect(NamedTuple):
    """How a table is written, as far as its titles and rows do not tell.

    columns: titles of columns by their meaning; "none" leaves a meaning out. date_order: of day, month and year.
    """

    columns: tuple[tuple[str, str], ...] = ()
    date_order: DateOrder | None = None


def make_dialect(columns: Mapping[str, str], date_order: DateOrder | None) -> Dialect:
    """The dialect of the settings `columns` and `date_order`. Raises UserError if one of them cannot be meant."""
    for meaning in columns:
        if meaning not in MEANINGS and not meaning.startswith(FEATURE_PREFIX):
            known = [*MEANINGS, f"{FEATURE_PREFIX}NAME"]
            raise UserError(f'columns cannot name a column "{meaning}". {nearest(meaning, known)}')
    if date_order is not None:
        check_choice("date_order", date_order, get_args(DateOrder))
    return Dialect(tuple(columns.items()), date_order)


@dataclass(frozen=True)
class Layout:
    """Names of a table's columns by meaning.

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
        """Whether the times are when bars open or close, if the name of their column or what wrote the file tells."""
        name = _plain(self.time[0]) if len(self.time) == 1 else ""
        opens, closes = (bool(_TIME.fullmatch(name) and word.search(name)) for word in (_OPENS, _CLOSES))
        if opens == closes:
            return self.documented_bar_time
        return "open" if opens else "close"

    @property
    def zone(self) -> str | None:
        """The time zone that the title of the times names, as `zone_in`. Raises UserError as that does."""
        return next((zone for title in self.time if (zone := zone_in(title))), None)


def find_layout(columns: Sequence[str], chosen: Mapping[str, str] | None = None) -> Layout:
    """What the columns mean. `time` or `fields` is empty if no such column was recognized.

    chosen: titles by meaning that the user gives, as in `Dialect`. Raises UserError if there is no such column.

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
    """The column of times, or those of the day and of the time of day; taken out of `found`."""
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
    """Whether the name of a column is known, even if another column with that meaning is read instead."""
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
    """Letters without their accents and digits alone, without what some exports number columns by.

    A time zone beside the name of a time is left out.

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
