"""ledger.csv: a ledger as a table in a file, whether it is written at once or row by row."""

import csv
from pathlib import Path

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger

LEDGER_FILE = "ledger.csv"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Write the table: a header and a line per row. NaN is an empty cell."""
    path.write_text(ledger_lines(ledger, header=True), encoding="utf-8", newline="")


def ledger_lines(ledger: Ledger, *, header: bool = False) -> str:
    """The rows as lines of the file, after its header if asked for; rows written one by one make the same file.

    >>> import numpy as np
    >>> times = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]")
    >>> print(ledger_lines({"time": times, "equity": np.array([1.0, np.nan])}, header=True), end="")
    time,equity
    2024-01-01 00:00:00,1.0
    2024-01-02 00:00:00,
    """
    import polars as pl

    return pl.DataFrame(ledger).fill_nan(None).write_csv(include_header=header, datetime_format=_TIME_FORMAT)


def ledger_line(ledger: Ledger) -> str:
    """`ledger_lines` of a ledger of one row, in a third of the time: its numbers are written as one column."""
    import polars as pl

    numbers = np.concatenate([values for name, values in ledger.items() if name != "time"])
    written = pl.DataFrame({"number": numbers}).fill_nan(None).write_csv(include_header=False)
    time = np.datetime_as_string(ledger["time"][0], unit="s").replace("T", " ")
    return ",".join([time, *written.splitlines()]) + "\n"


def column_names(header: str) -> list[str]:
    """The names of a ledger's columns, of the first line of its file; symbols may have commas and quotes.

    >>> column_names('time,"position_A,B","position_C""D"')
    ['time', 'position_A,B', 'position_C"D']
    """
    return next(csv.reader([header]))
