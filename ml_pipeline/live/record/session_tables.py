"""The files of a session that grow by lines, made whole from the journal at the start and written on row by row."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from ml_pipeline.monitoring.line_file import AppendedFile
from ml_pipeline.runtime.regular_file import only_regular, open_regular
from ml_pipeline.runtime.whole_file import written_whole
from ml_pipeline.trading.accounts.recorder import LedgerRecorder, LedgerRow
from ml_pipeline.trading.evaluation.ledger_file import ledger_line, ledger_lines
from ml_pipeline.trading.market.bar_set import BarSet, bid_and_ask
from ml_pipeline.trading.market.timeframes import Timing


class GrowingFile(AppendedFile):
    """A file of lines that the journal holds as well."""

    remedy = "make room, then start the session again"

    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        """Open the file, after making it hold these lines, with their ends, and nothing else.

        So a file that a kill left torn or cut is whole again. Raises UserError where it cannot be written.
        """
        self.path = path
        try:
            lines, again = itertools.tee(lines)
            if not _holds(path, lines):
                with written_whole(path, "w", encoding="utf-8", newline="") as file:
                    file.writelines(again)
            self._file = open(path, "a", encoding="utf-8", newline="", opener=only_regular)  # noqa: SIM115
        except OSError as error:
            raise self.failure(error) from error


def _holds(path: Path, lines: Iterable[str]) -> bool:
    """Whether the file is there and holds exactly these lines."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
            return all(file.read(len(line)) == line for line in lines) and not file.read(1)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


class LedgerLines:
    """Makes the lines of ledger.csv, one bar at a time, as an evaluation writes them.

    The columns are those of a `LedgerRecorder` of the same arguments. costs_paid: of all lines so far.
    """

    def __init__(self, symbols: Sequence[str], *, quotes: bool, exits: bool, by_day: bool) -> None:
        self._arguments = {"quotes": quotes, "exits": exits, "by_day": by_day}
        self._symbols = tuple(symbols)
        self.costs_paid = 0.0

    def header(self) -> str:
        empty = LedgerRecorder(self._symbols, **self._arguments).ledger()
        return ledger_lines(empty, header=True)

    def line(self, row: LedgerRow) -> str:
        """The line of the next bar, with its end."""
        recorder = LedgerRecorder(self._symbols, **self._arguments)
        recorder.costs_paid = self.costs_paid
        recorder.append(row)
        self.costs_paid = recorder.costs_paid
        return ledger_line(recorder.ledger())


class BarLines:
    """Makes the lines of bars.csv, in the form that `train --data` reads: one line per symbol that has a bar.

    The name of the time column says whether bars open or close there. Quotes are written as bid and ask around the
    close; the journal has their half-spread to the bit.
    """

    def __init__(self, symbols: Sequence[str], timing: Timing, *, quotes: bool, columns: Sequence[str]) -> None:
        self._symbols = tuple(symbols)
        self._time = f"{timing.stamped}_time"
        self._quotes = quotes
        self._columns = tuple(columns)

    def header(self) -> str:
        names = [self._time, "symbol", "open", "high", "low", "close", "volume"]
        names += ["bid", "ask"] if self._quotes else []
        return ",".join([*names, *map(_cell, self._columns)]) + "\n"

    def lines(self, bars: BarSet) -> str:
        """The lines of one time; empty where no symbol has a bar."""
        time = str(bars.time.astype("datetime64[ns]")).replace("T", " ").rstrip("0").rstrip(".")
        time = time if "." in time else str(bars.time.astype("datetime64[s]")).replace("T", " ")
        tables = [bars.open, bars.high, bars.low, bars.close, bars.volume]
        if self._quotes:
            half = np.zeros_like(bars.close) if bars.half_spread is None else np.nan_to_num(bars.half_spread)
            tables += bid_and_ask(bars.close, half)
        tables += [bars.columns.get(name, np.full(len(bars.close), np.nan)) for name in self._columns]
        rows = zip(*(table.tolist() for table in tables), strict=True)
        present = bars.present.tolist()
        return "".join(
            f"{time},{_cell(symbol)},{','.join('' if value != value else repr(value) for value in values)}\n"  # noqa: PLR0124
            for symbol, values, has in zip(self._symbols, rows, present, strict=True)
            if has
        )

    def file_lines(self, bars: Iterable[BarSet]) -> Iterator[str]:
        """The whole file."""
        yield self.header()
        for each in bars:
            yield self.lines(each)


def _cell(text: str) -> str:
    """A text as a cell of a CSV file (RFC 4180)."""
    return '"' + text.replace('"', '""') + '"' if any(each in text for each in ',"\r\n') else text
