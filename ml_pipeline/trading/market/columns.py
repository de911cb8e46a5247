"""Finds out what each column of a market file means; it knows the spellings of common exports."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ml_pipeline.trading.market.times import BarTime

# Feature columns in the data begin with this.
FEATURE_PREFIX = "feature_"
# Meaning of a column: its possible names, letters and digits only, the likeliest first.
_NAMES = {
    "time": (
        *("datetime", "timestamp", "gmttime", "utctime", "time", "date", "localtime", "opentime", "candlebegintime"),
        *("unix", "unixtime", "epoch", "ts", "t", "dt", "day", "closetime"),
    ),
    "symbol": ("symbol", "ticker", "tic", "asset", "pair", "instrument", "coin", "sym"),
    "open": ("open", "o", "openprice", "priceopen"),
    "high": ("high", "h", "highprice", "pricehigh", "max"),
    "low": ("low", "l", "lowprice", "pricelow", "min"),
    "close": ("close", "c", "closeprice", "priceclose", "closelast", "price", "last", "lastprice"),
    "adjusted": ("adjclose", "adjustedclose", "closeadj", "closeadjusted", "adjcp", "adjcloseprice"),
    "bid": ("bid", "closebid", "bidclose", "bidprice"),
    "ask": ("ask", "closeask", "askclose", "askprice", "offer"),
    "volume": ("volume", "vol", "v", "tickvol", "tickvolume", "volumebase", "realvolume"),
}
# Names of time columns that say whether a bar opens or closes there.
_BAR_TIMES: dict[str, BarTime] = {"opentime": "open", "candlebegintime": "open", "closetime": "close"}
# pandas exports leave the name of the index empty; it is the time only if no other column is.
_INDEX = ("", "unnamed0", "index")
_PRICES = r"open|high|low|close|bid|ask|volume|adj[ _]?close|feature_\w+"
_SYMBOL_FIRST = re.compile(rf"^(?P<symbol>.+)[:_./| -](?P<field>{_PRICES})$", re.IGNORECASE)
_SYMBOL_LAST = re.compile(rf"^(?P<field>{_PRICES})[:_./| -](?P<symbol>.+)$", re.IGNORECASE)


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

    @property
    def bar_time(self) -> BarTime | None:
        """Whether the times are when bars open or close, if the name of their column tells."""
        return _BAR_TIMES.get(_plain(self.time[0])) if len(self.time) == 1 else None


def find_layout(columns: Sequence[str]) -> Layout:
    """What the columns mean. `time` or `fields` is empty if no such column was recognized.

    >>> find_layout(["Gmt time", "Open", "Close", "Adj Close"]).fields
    {'': {'open': 'Open', 'close': 'Close', 'adjusted': 'Adj Close'}}
    >>> sorted(find_layout(["", "BTC:close", "ETH:close", "ETH:volume"]).fields)
    ['BTC', 'ETH']
    """
    plain = {_plain(name): name for name in reversed(columns)}
    found = {
        meaning: name for meaning in _NAMES if (name := next((plain[n] for n in _NAMES[meaning] if n in plain), None))
    }
    index = next((plain[name] for name in _INDEX if name in plain), None)
    times = tuple(name for name in (found.pop("time", index),) if name is not None)
    if "date" in plain and "time" in plain:
        times = (plain["date"], plain["time"])
    symbol = found.pop("symbol", None)
    if "adjusted" in found and "close" not in found:
        found["close"] = found.pop("adjusted")
    volumes = [name for name in columns if _plain(name).startswith("volume")]
    if volumes:
        found.setdefault("volume", volumes[0])
    if _has_price(found):
        found |= {name: name for name in columns if name.startswith("feature_")}
        return Layout(times, symbol, {"": found})
    return Layout(times, None, _wide_fields(columns))


def is_usual(name: str) -> bool:
    """Whether the name of a column is known, even if another column with that meaning is read instead."""
    plain = _plain(name)
    return plain in _INDEX or plain.startswith("volume") or any(plain in names for names in _NAMES.values())


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
    return re.sub(r"[^a-z0-9]", "", name.lower())
