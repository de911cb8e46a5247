"""Record a session: first in its journal, then in the files that are derived from it."""

import contextlib
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_log import Event, event_line, plain
from ml_pipeline.live.session_files import BARS_FILE, DECISION_FILE, LEDGER_FILE, LOG_FILE, STATUS_FILE
from ml_pipeline.live.state import SessionState
from ml_pipeline.monitoring.sinks import AppendedFile
from ml_pipeline.runtime.files import only_regular, open_regular, written_whole
from ml_pipeline.trading.accounts.ledger import LedgerRecorder, LedgerRow
from ml_pipeline.trading.evaluation.report import ledger_line, ledger_lines
from ml_pipeline.trading.market.bar_set import BarSet, bid_and_ask
from ml_pipeline.trading.market.timeframes import Timing


class GrowingFile(AppendedFile):
    """A file of lines that are also in the journal."""

    remedy = "make room, then restart the session"

    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        """Make the file contain exactly these lines, with their ends, and open it.

        This repairs a file that a kill left incomplete. Raises UserError if it cannot be written.
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
    """Whether the file exists and contains exactly these lines."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
            return all(file.read(len(line)) == line for line in lines) and not file.read(1)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


class LedgerLines:
    """Formats the lines of ledger.csv, one bar at a time, as an evaluation writes them.

    The columns are those of a `LedgerRecorder` with the same arguments. costs_paid: sum over all lines so far.
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
    """Formats the lines of bars.csv, in the format that `train --data` reads: one line per symbol that has a bar.

    The name of the time column shows whether times are opens or closes. Quotes are written as bid and ask around the
    close; the journal has the exact half-spread.
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
        """The lines of one time; empty if no symbol has a bar."""
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
        """The lines of the whole file."""
        yield self.header()
        for each in bars:
            yield self.lines(each)


def _cell(text: str) -> str:
    """A text as a cell of a CSV file (RFC 4180)."""
    return '"' + text.replace('"', '""') + '"' if any(each in text for each in ',"\r\n') else text


def write_status(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically: readers see the old or the new one, never a part of it.

    It does not wait for the disk, since the journal has the data. A full disk costs the file, not the session.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(plain(values), ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


_STATUS_EVERY_S = 0.25
_LATENCIES = 1_000

Say = Callable[[str], None]
Tell = Callable[[Event, np.datetime64 | None, Mapping[str, Any]], None]


class SessionRecord:
    """The journal of a session, and its state, log, tables and status, kept consistent.

    Opening it repairs files that a kill left incomplete. say: called with each message for the user.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        state: SessionState,
        *,
        symbols: Sequence[str],
        timing: Timing,
        ledger: Mapping[str, bool],
        say: Say = lambda sentence: None,
        tell: Tell = lambda event, bar, values: None,
    ) -> None:
        """tell: called with each event after it is in the journal, for alerts.

        ledger: `exits` and `by_day` of `LedgerLines`; the first bar shows whether there are quotes.
        """
        self.folder = folder
        self.journal = journal
        self.state = state
        self.say = say
        self._tell = tell
        self._untold: list[tuple[Event, np.datetime64 | None, Mapping[str, Any]]] = []
        self.last_sentence = ""
        self.latencies_ms: deque[float] = deque(maxlen=_LATENCIES)
        self._symbols, self._timing, self._of_ledger = tuple(symbols), timing, dict(ledger)
        self._pending: list[str] = []
        self._rows: list[tuple[str, str]] = []  # (line of the ledger, lines of the bars) of this transaction
        self._status_at = -_STATUS_EVERY_S
        self._log = GrowingFile(folder / LOG_FILE, (f"{line}\n" for line in journal.log_lines()))
        self._tables: tuple[LedgerLines, BarLines, GrowingFile, GrowingFile] | None = None
        if (columns := state.bar_columns) is not None:
            self._open_tables(columns["quotes"], columns["names"])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything that the block records, and the session's state, to the journal at once, then to the
        files."""
        costs_paid = self._tables[0].costs_paid if self._tables else 0.0
        try:
            with self.journal.transaction():
                yield
                self.journal.add_log_lines(self._pending)
                if self._rows and self._tables:
                    self.state.costs_paid = self._tables[0].costs_paid
                self.state.save(self.journal)
        except BaseException:
            self.state.note_rolled_back()
            if self._tables:
                self._tables[0].costs_paid = costs_paid
            self._pending.clear()
            self._rows.clear()
            self._untold.clear()
            raise
        self._write_files()
        for told in self._untold:
            self._tell(*told)
            if sentence := told[2].get("sentence"):
                self.last_sentence = sentence
                self.say(sentence)
        self._untold.clear()

    def log(self, event: Event, bar: np.datetime64 | None = None, /, **values: Any) -> None:
        """Log an event within a transaction. The user also sees its `sentence`."""
        self._pending.append(event_line(event, bar, values))
        self._untold.append((event, bar, values))

    def log_now(self, event: Event, bar: np.datetime64 | None = None, /, **values: Any) -> None:
        """Log an event in a transaction of its own."""
        with self.transaction():
            self.log(event, bar, **values)

    def note_undelivered(self, sentence: str) -> None:
        """Log an alert that was not delivered, without sending another alert about it."""
        with self.transaction():
            self._pending.append(event_line("alert", None, {"sentence": sentence}))
        self.say(sentence)

    def add_bar(self, number: int, bars: BarSet, row: LedgerRow | None) -> None:
        """Record the next bar and its row of the ledger (None for a warm-up bar), within a transaction."""
        if self._tables is None:
            self._begin_tables(bars)
        assert self._tables is not None
        ledger, of_bars, _, _ = self._tables
        line = None if row is None else ledger.line(row)
        self.journal.add_bar(number, bars, "warm" if row is None else "account", line=line)
        self._rows.append((line or "", of_bars.lines(bars)))

    @property
    def quotes(self) -> bool | None:
        """Whether bars have quotes; None before the first."""
        columns = self.state.bar_columns
        return None if columns is None else bool(columns["quotes"])

    def write_status(self, values: Callable[[], Mapping[str, Any]], decision: Mapping[str, Any] | None) -> None:
        """Rewrite live.json and decision.json, unless they were written a moment ago."""
        if (now := time.monotonic()) - self._status_at >= _STATUS_EVERY_S:
            self._status_at = now
            self.write_status_now(values(), decision)

    def write_status_now(self, values: Mapping[str, Any], decision: Mapping[str, Any] | None) -> None:
        write_status(self.folder / STATUS_FILE, values)
        if decision is not None:
            write_status(self.folder / DECISION_FILE, decision)

    def latency_figures(self) -> dict[str, float | None]:
        """The median and the 99th percentile of the last latencies from bars to orders, in ms."""
        if not self.latencies_ms:
            return {"median": None, "p99": None}
        median, p99 = np.percentile(list(self.latencies_ms), [50, 99]).tolist()
        return {"median": round(median, 3), "p99": round(p99, 3)}

    def close(self) -> None:
        """Close every file; may be called twice."""
        self._log.close()
        for file in self._tables[2:] if self._tables else ():
            file.close()
        self.journal.close()

    def _begin_tables(self, bars: BarSet) -> None:
        quotes, names = bars.half_spread is not None, list(bars.columns)
        self.state.bar_columns = {"quotes": quotes, "names": names}
        self._open_tables(quotes, names)
        assert self._tables is not None
        self.journal.set_meta({"ledger_header": self._tables[0].header()})

    def _open_tables(self, quotes: bool, columns: Sequence[str]) -> None:
        ledger = LedgerLines(self._symbols, quotes=quotes, **self._of_ledger)
        ledger.costs_paid = self.state.costs_paid
        of_bars = BarLines(self._symbols, self._timing, quotes=quotes, columns=columns)
        ledger_file = GrowingFile(self.folder / LEDGER_FILE, self._ledger_lines(ledger.header()))
        bars_file = GrowingFile(self.folder / BARS_FILE, of_bars.file_lines(self.journal.bars()))
        self._tables = ledger, of_bars, ledger_file, bars_file

    def _ledger_lines(self, header: str) -> Iterator[str]:
        yield header
        yield from self.journal.ledger_lines()

    def _write_files(self) -> None:
        if self._pending:
            self._log.add("".join(f"{line}\n" for line in self._pending))
            self._pending.clear()
        if self._rows and self._tables:
            _, _, ledger_file, bars_file = self._tables
            for line, of_bars in self._rows:
                ledger_file.add(line)
                bars_file.add(of_bars)
            self._rows.clear()
