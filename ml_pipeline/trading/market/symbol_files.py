"""Find the files of each symbol in a folder: EURUSD is in EURUSD.csv, eurusd.parquet or FOREX_EURUSD_1H_ASK.csv.

Two files whose names differ only by bid and ask are one symbol. So are files that differ only by dates, if a source
documents their names.
"""

import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.csv_file import names_in
from ml_pipeline.trading.market.joined_files import pairs_among

_SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".zip", ".parquet", ".pq", ".feather", ".arrow")
# The halves of symbols in MetaTrader 4's file names; other names with a number, such as SYMBOL15, mean nothing.
_MONEY = (
    *("USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "NZD", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "RON", "ILS"),
    *("TRY", "RUB", "ZAR", "MXN", "BRL", "CNY", "CNH", "HKD", "SGD", "THB", "INR", "KRW", "TWD", "SAR", "AED"),
    *("XAU", "XAG", "XPT", "XPD", "BTC", "ETH", "LTC", "XRP"),
)
# Documented file names: symbol, bar length and, for several files, dates.
_DOCUMENTED = tuple(
    map(
        re.compile,
        (
            # Binance: BTCUSDT-1h-2023-01, BTCUSDT-1m-2023-01-31 (github.com/binance/binance-public-data)
            r"(?P<symbol>[A-Z0-9_]{5,})(?P<length>-\d{1,2}(?:s|m|h|d|w|mo))-(?P<dates>\d{4}-\d\d(?:-\d\d)?)",
            # Kraken: XBTUSD_60 (support.kraken.com, "Downloadable historical OHLCVT data")
            r"(?P<symbol>[A-Z0-9.]{2,}(?:USD[CT]?|EUR|GBP|JPY|CHF|CAD|AUD|XBT|ETH|DAI))"
            r"(?P<length>_(?:1|5|15|30|60|240|720|1440))",
            # MetaTrader 5: EURUSD_M1_202301020000_202312292359 (its "Export Bars")
            r"(?P<symbol>.+)(?P<length>_(?:M\d\d?|H\d\d?|Daily|Weekly|Monthly))"
            r"_(?P<dates>(?:\d{8}|\d{12})_(?:\d{8}|\d{12}))",
            # MetaTrader 4: EURUSD60 (its History Center)
            rf"(?P<symbol>(?:{'|'.join(_MONEY)}){{2}})(?P<length>1|5|15|30|60|240|1440|10080|43200)",
            # HistData: DAT_ASCII_EURUSD_M1_2023 (histdata.com, "Detailed file specification")
            r"DAT_(?:ASCII|MT|NT)_(?P<symbol>[A-Z]{6})(?P<length>_M1)_(?P<dates>\d{4}(?:\d\d)?)",
            # Dukascopy: EURUSD_Candlestick_1_h_BID_01.01.2023-31.12.2023 (its historical data export)
            r"(?P<symbol>[\w.-]+)_Candlestick(?P<length>_\w+)(?P<side>_(?:BID|ASK))"
            r"_(?P<dates>\d\d\.\d\d\.\d{4}-\d\d\.\d\d\.\d{4})",
        ),
    )
)
# Most files of a folder that a message names.
_MOST_NAMED = 8
# Least similarity for a suggestion: EURUSX suggests EURUSD, and XAUUSD does not.
_NEAR = 0.8


class SymbolFiles(NamedTuple):
    """The files of one symbol: one file, bid and ask, or files of consecutive dates.

    name: the symbol in the file names.
    """

    name: str
    files: tuple[Path, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings `data` and `symbols` for this market alone."""
        if len(self.files) == 1:
            return {"data": self.files[0], "symbols": ()}
        return {"data": self.files[0].parent, "symbols": (self.name,)}


class _Name(NamedTuple):
    """A parsed file name. series: the symbol with its bar length. has_dates: other files may continue it."""

    symbol: str
    series: str
    has_dates: bool


def _told_by(name: str) -> _Name:
    """Parse a file name of a documented form; otherwise the whole name is the symbol.

    >>> _told_by("BTCUSDT-1h-2023-01.csv"), _told_by("BRK.A.csv.gz").symbol
    (_Name(symbol='BTCUSDT', series='BTCUSDT-1h', has_dates=True), 'BRK.A')
    >>> _told_by("EURUSD_Candlestick_1_h_BID_01.01.2023-31.12.2023.csv").symbol, _told_by("XBTUSD_60.csv").symbol
    ('EURUSD_BID', 'XBTUSD')
    """
    stem = _stem(name)
    for pattern in _DOCUMENTED:
        if found := pattern.fullmatch(stem):
            parts = found.groupdict()
            side = parts.get("side") or ""
            return _Name(
                found["symbol"] + side, found["symbol"] + found["length"] + side, parts.get("dates") is not None
            )
    return _Name(stem, stem, has_dates=False)


def _stem(name: str) -> str:
    """The name of a file without the suffixes of its format: BRK.A of BRK.A.csv.gz."""
    while (suffix := Path(name).suffix.lower()) in _SUFFIXES and Path(name).stem:
        name = name[: -len(suffix)]
    return name


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """The symbol of each file by its name, with the bar length if these files have several lengths of a symbol."""
    told = {file: _told_by(file.name) for file in files}
    series = _series_of(told.values())
    return {file: name.symbol if len(series[name.symbol]) == 1 else name.series for file, name in told.items()}


def _series_of(told: Iterable[_Name]) -> dict[str, list[str]]:
    """The series of each symbol, in the order of the files."""
    series: dict[str, list[str]] = {}
    for name in dict.fromkeys(told):
        if name.series not in (of_symbol := series.setdefault(name.symbol, [])):
            of_symbol.append(name.series)
    return series


def of_several_lengths(symbol: str, files: Iterable[str]) -> str | None:
    """Why these files have no such symbol, if they hold its bars in several lengths; otherwise None.

    >>> of_several_lengths("EURUSD", ["EURUSD5.csv", "EURUSD60.csv", "GBPUSD60.csv"])
    'EURUSD has bars of several lengths there, and each is a symbol named with its length; name EURUSD5 or EURUSD60.'
    """
    for name, series in _series_of(_told_by(file) for file in files).items():
        if _plain(name) == _plain(symbol) and len(series) > 1:
            return (
                f"{symbol} has bars of several lengths there, and each is a symbol named with its length; name "
                f"{' or '.join(series)}."
            )
    return None


def follow_each_other(file: str, other: str) -> bool:
    """Whether files with these names hold the same kind of bars for different dates.

    >>> follow_each_other("BTCUSDT-1h-2023-01.csv", "BTCUSDT-1h-2023-02.csv")
    True
    >>> follow_each_other("EURUSD.csv", "EURUSD.parquet")
    False
    """
    name = _told_by(file)
    return name.has_dates and name == _told_by(other)


def files_of(path: Path) -> list[Path]:
    """The file, or the market data files of a folder. Raises UserError if there is none."""
    if not path.exists():
        raise UserError(f"There is no market data at {path}; check the path.")
    if path.is_file():
        return [path]
    there = sorted(p for p in path.iterdir() if p.is_file() and p.suffix.lower() in _SUFFIXES and p.name[0] != ".")
    unpacked = {_stem(file.name) for file in there if file.suffix.lower() != ".zip"}
    files = [file for file in there if file.suffix.lower() != ".zip" or _is_other_table(file, unpacked)]
    if not files:
        left = f"; {there[0].name} does not hold exactly one table, so unpack it into a folder" if there else ""
        raise UserError(f"The folder {path} holds no market data; expected CSV or Parquet files, one per symbol{left}.")
    return files


def _is_other_table(archive: Path, unpacked: set[str]) -> bool:
    """Whether a ZIP archive holds exactly one table that is not in the folder unpacked, or is damaged."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = names_in(opened)
    except (zipfile.BadZipFile, OSError):
        names = [archive.name]
    if len(names) != 1 or Path(names[0]).suffix.lower() not in _SUFFIXES:
        return False
    return unpacked.isdisjoint({_stem(archive.name), _stem(Path(names[0]).name)})


def symbols_of(files: Sequence[Path]) -> list[SymbolFiles]:
    """The symbols in the names of these files. Raises UserError if a pair and a file have the same name."""
    groups: dict[_Name | Path, SymbolFiles] = {}
    for file, name in names_of(files).items():
        told = _told_by(file.name)
        group = told if told.has_dates else file
        before = groups[group].files if group in groups else ()
        groups[group] = SymbolFiles(name, (*before, file))
    alone = [*groups.values()]
    of_name = {own.name: own for own in alone}
    pairs = [
        SymbolFiles(name, (*of_name[bid].files, *of_name[ask].files))
        for name, (bid, ask) in pairs_among(of_name).items()
    ]
    for pair in pairs:
        if own := of_name.get(pair.name):
            bid, ask = pair.files[0].name, pair.files[-1].name
            raise UserError(
                f"{pair.name} is in one file, {own.files[0].name}, and {bid} and {ask} are its bid and ask; keep the "
                "pair, or the one file."
            )
    in_pairs = {file for pair in pairs for file in pair.files}
    return sorted([*pairs, *(own for own in alone if own.files[0] not in in_pairs)], key=lambda own: own.files[0])


def find_symbol_files(folder: str | Path, symbols: Sequence[str]) -> dict[str, SymbolFiles]:
    """The files of each symbol in a folder; without symbols, of all symbols in the file names.

    A file name is the symbol, or has it as a part: letters and digits between other characters, in any case. BTC/USD is
    in BTC_USD-Hourly.csv. A name that equals the symbol wins over one that contains it.
    Raises UserError if a symbol is in no file or in several, or named twice, and if the folder holds no data.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but a folder with one file per symbol is expected; name its folder.")
    there = symbols_of(files_of(folder))
    if not symbols:
        by_name = {own.name: [other for other in there if other.name == own.name] for own in there}
        return {name: _the_one(name, found, folder) for name, found in by_name.items()}
    if isinstance(symbols, str):
        raise UserError(f'symbols must be a list such as ["{symbols}"], but got the text "{symbols}".')
    _check_symbols(symbols)
    if missing := [symbol for symbol in symbols if not _candidates(symbol, there)]:
        names = [own.name for own in there]
        hint = did_you_mean(missing[0], [*names, *(part for name in names for part in _parts(name))], least=_NEAR)
        raise UserError(f"{folder} has no file of {', '.join(missing)}; it holds {_listed(there)}.{hint}")
    return {symbol: _the_one(symbol, _candidates(symbol, there), folder) for symbol in symbols}


def _the_one(symbol: str, candidates: Sequence[SymbolFiles], folder: Path) -> SymbolFiles:
    if len(candidates) > 1:
        if why := of_several_lengths(symbol, [file.name for own in candidates for file in own.files]):
            raise UserError(f"{folder}: {why}")
        raise UserError(
            f"{symbol} may be in {_listed(candidates)} of {folder}; keep one of them, or use the file's name as the "
            "symbol."
        )
    return candidates[0]


def _check_symbols(symbols: Sequence[str]) -> None:
    for symbol in symbols:
        if not isinstance(symbol, str) or not _plain(symbol):
            raise UserError(f"A symbol must be a text such as EURUSD, but got {symbol!r}.")
        if _is_path(symbol):
            raise UserError(f"A symbol must be a name such as EURUSD or BTC/USD, not a path, but got {symbol!r}.")
        if sum(_plain(symbol) == _plain(str(other)) for other in symbols) > 1:
            raise UserError(f"{symbol} is named twice; name each symbol once.")


def _is_path(symbol: str) -> bool:
    """Whether a symbol is a path to another place; names are compared by letters and digits only.

    >>> [_is_path(symbol) for symbol in ("BTC/USD", "^GSPC", "BRK.B", "../x", "/x", "a/b/c", "./x")]
    [False, False, False, True, True, True, True]
    """
    return (
        symbol.startswith(("/", "./", "~")) or symbol.count("/") > 1 or bool({"\\", "\0"} & {*symbol}) or ".." in symbol
    )


def _candidates(symbol: str, there: Sequence[SymbolFiles]) -> list[SymbolFiles]:
    """The files whose name is the symbol or, if there are none, those that contain it."""
    wanted = _plain(symbol)
    whole = [own for own in there if wanted in {_plain(own.name), *(_plain(_stem(file.name)) for file in own.files)}]
    return whole or [own for own in there if _has_part(_parts(own.name), wanted)]


def _has_part(parts: Sequence[str], wanted: str) -> bool:
    """Whether consecutive parts make up the symbol.

    >>> _has_part(["BTC", "USD", "1h"], "btcusd"), _has_part(["EURUSDT"], "eurusd")
    (True, False)
    """
    n = len(parts)
    return any(_plain("".join(parts[i:j])) == wanted for i in range(n) for j in range(i + 1, n + 1))


def _parts(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name)


def _plain(name: str) -> str:
    """
    >>> _plain("BTC/USD")
    'btcusd'
    """
    return "".join(_parts(name)).lower()


def _listed(there: Sequence[SymbolFiles]) -> str:
    files = [file for own in there for file in own.files]
    names = ", ".join(file.name for file in files[:_MOST_NAMED])
    more = len(files) - _MOST_NAMED
    return f"{names} and {counted(more, 'other')}" if more > 0 else names
