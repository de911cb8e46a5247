"""Which files of a folder hold which symbol: EURUSD is in EURUSD.csv, eurusd.parquet or FOREX_EURUSD_1H_ASK.csv.

Two files whose names differ by bid and ask alone are one symbol.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.quote_pairs import pairs_among

_SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".pq")
# A message names so many files of a folder.
_MOST_NAMED = 8
# EURUSX is near to EURUSD, and XAUUSD, which ends alike, is not.
_NEAR = 0.8


class SymbolFiles(NamedTuple):
    """The files of one symbol: one, or its bid and its ask. name: the symbol as the files name it."""

    name: str
    files: tuple[Path, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings `data` and `symbols` that mean this market alone."""
        if len(self.files) == 1:
            return {"data": self.files[0], "symbols": ()}
        return {"data": self.files[0].parent, "symbols": (self.name,)}


def symbol_of(file: Path) -> str:
    """The name of the file without the suffixes of its format: BRK.A of BRK.A.csv.gz."""
    name = file.name
    while (suffix := Path(name).suffix.lower()) in _SUFFIXES and Path(name).stem:
        name = name[: -len(suffix)]
    return name


def files_of(path: Path) -> list[Path]:
    """The file, or the market data files of a folder. Raises UserError if there is none."""
    if not path.exists():
        raise UserError(f"There is no market data at {path}; check the path.")
    if path.is_file():
        return [path]
    files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix.lower() in _SUFFIXES and p.name[0] != ".")
    if not files:
        raise UserError(f"The folder {path} holds no market data; expected CSV or Parquet files, one per symbol.")
    return files


def symbols_of(files: Sequence[Path]) -> list[SymbolFiles]:
    """The symbols that these files hold by their names. Raises UserError if a pair and a file have the same name."""
    alone = [SymbolFiles(symbol_of(file), (file,)) for file in files]
    of_name = {own.name: own for own in alone}
    pairs = [
        SymbolFiles(name, (*of_name[bid].files, *of_name[ask].files))
        for name, (bid, ask) in pairs_among(of_name).items()
    ]
    for pair in pairs:
        if own := of_name.get(pair.name):
            bid, ask = (file.name for file in pair.files)
            raise UserError(
                f"{pair.name} is a file of its own, {own.files[0].name}, and {bid} and {ask} are its bid and ask; keep "
                "the pair, or the one file."
            )
    in_pairs = {file for pair in pairs for file in pair.files}
    return sorted([*pairs, *(own for own in alone if own.files[0] not in in_pairs)], key=lambda own: own.files[0])


def find_symbol_files(folder: str | Path, symbols: Sequence[str]) -> dict[str, SymbolFiles]:
    """The files of each symbol in a folder; without symbols, of all by their own names.

    A file's name is the symbol, or has it as a part: letters and digits between other characters, whatever their case.
    BTC/USD is in BTC_USD-Hourly.csv. A name that is the symbol wins over one that has it as a part.
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
        raise UserError(
            f"{symbol} may be in {_listed(candidates)} of {folder}; leave one of them there, or name the symbol as the "
            "file is named."
        )
    return candidates[0]


def _check_symbols(symbols: Sequence[str]) -> None:
    for symbol in symbols:
        if not isinstance(symbol, str) or not _plain(symbol):
            raise UserError(f"A symbol must be a text such as EURUSD, but got {symbol!r}.")
        if _is_path(symbol):
            raise UserError(f"A symbol must be a name such as EURUSD or BTC/USD, and no path, but got {symbol!r}.")
        if sum(_plain(symbol) == _plain(str(other)) for other in symbols) > 1:
            raise UserError(f"{symbol} is named twice; name each symbol once.")


def _is_path(symbol: str) -> bool:
    """Whether a symbol leads elsewhere, as names are compared by their letters and digits alone.

    >>> [_is_path(symbol) for symbol in ("BTC/USD", "^GSPC", "BRK.B", "../x", "/x", "a/b/c", "./x")]
    [False, False, False, True, True, True, True]
    """
    return (
        symbol.startswith(("/", "./", "~")) or symbol.count("/") > 1 or bool({"\\", "\0"} & {*symbol}) or ".." in symbol
    )


def _candidates(symbol: str, there: Sequence[SymbolFiles]) -> list[SymbolFiles]:
    """Those whose name is the symbol or, if there is none, those that have it as a part."""
    wanted = _plain(symbol)
    whole = [own for own in there if _plain(own.name) == wanted]
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
