"""Which file of a folder holds which symbol: EURUSD is in EURUSD.csv, eurusd.parquet or FOREX_EURUSD_1H_ASK.csv."""

import re
from collections.abc import Sequence
from pathlib import Path

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.files import files_of, symbol_of

# A message names so many files of a folder.
_MOST_NAMED = 8
# EURUSX is near to EURUSD, and XAUUSD, which ends alike, is not.
_NEAR = 0.8


def find_symbol_files(folder: str | Path, symbols: Sequence[str]) -> dict[str, Path]:
    """The file of each symbol in a folder with one file per symbol; without symbols, every file by its own name.

    A file's name is the symbol, or has it as a part: letters and digits between other characters, whatever their case.
    BTC/USD is in BTC_USD-Hourly.csv. A name that is the symbol wins over one that has it as a part.
    Raises UserError where a symbol is in no file or in several, or named twice, and where the folder holds no data.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but a folder with one file per symbol is expected; name its folder.")
    files = files_of(folder)
    if not symbols:
        return {symbol_of(file): file for file in files}
    if isinstance(symbols, str):
        raise UserError(f'symbols must be a list such as ["{symbols}"], but got the text "{symbols}".')
    for symbol in symbols:
        if not isinstance(symbol, str) or not _plain(symbol):
            raise UserError(f"A symbol must be a text such as EURUSD, but got {symbol!r}.")
        if _is_path(symbol):
            raise UserError(f"A symbol must be a name such as EURUSD or BTC/USD, and no path, but got {symbol!r}.")
        if sum(_plain(symbol) == _plain(str(other)) for other in symbols) > 1:
            raise UserError(f"{symbol} is named twice; name each symbol once.")
    missing = [symbol for symbol in symbols if not _candidates(symbol, files)]
    if missing:
        names = [symbol_of(file) for file in files]
        hint = did_you_mean(missing[0], [*names, *(part for name in names for part in _parts(name))], least=_NEAR)
        raise UserError(f"{folder} has no file of {', '.join(missing)}; it holds {_listed(files)}.{hint}")
    found: dict[str, Path] = {}
    for symbol in symbols:
        candidates = _candidates(symbol, files)
        if len(candidates) > 1:
            raise UserError(
                f"{symbol} may be in {_listed(candidates)} of {folder}; leave one of them there, or name the symbol as "
                "the file is named."
            )
        found[symbol] = candidates[0]
    return found


def _is_path(symbol: str) -> bool:
    """Whether a symbol leads elsewhere, as names are compared by their letters and digits alone.

    >>> [_is_path(symbol) for symbol in ("BTC/USD", "^GSPC", "BRK.B", "../x", "/x", "a/b/c", "./x")]
    [False, False, False, True, True, True, True]
    """
    return (
        symbol.startswith(("/", "./", "~")) or symbol.count("/") > 1 or bool({"\\", "\0"} & {*symbol}) or ".." in symbol
    )


def _candidates(symbol: str, files: Sequence[Path]) -> list[Path]:
    """The files whose name is the symbol or, if there is none, those that have it as a part."""
    wanted = _plain(symbol)
    whole = [file for file in files if _plain(symbol_of(file)) == wanted]
    return whole or [file for file in files if _has_part(_parts(symbol_of(file)), wanted)]


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


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:_MOST_NAMED])
    more = len(files) - _MOST_NAMED
    return f"{names} and {counted(more, 'other')}" if more > 0 else names
