"""The folder of a trading session: the names of its files, and its last sign of life.

To watch a session, read these files; this works whether or not the trading process is alive.
"""

import contextlib
import errno
import stat
from pathlib import Path

from ml_pipeline.runs.state import STATE_FILE

JOURNAL_FILE = "journal.sqlite"
"""The books: decisions, orders, fills and charges, written before anything is sent."""
BROKER_FILE = "simulated-broker.sqlite"
"""The account of the simulated broker; it stands for an account on another machine."""
BARS_FILE = "bars.csv"
"""Every bar as it was when decided on, warm-up bars included, in the format that `train` reads."""
LEDGER_FILE = "ledger.csv"
"""The account, one row per bar, as an evaluation writes it."""
LOG_FILE = "live.jsonl"
"""The events, one JSON object per line; `session_log` lists them."""
STATUS_FILE = "live.json"
"""The session at its last bar; replaced as a whole."""
DECISION_FILE = "decision.json"
"""The last decision and all its features; replaced as a whole."""
HEARTBEAT_FILE = "heartbeat"
"""Touched every few seconds by the trading process."""
REQUEST_FILE = "request"
"""A user's request to the process: the word `stop` or `flatten`."""
REPORT_FILE = "report.html"
RECONCILIATION_FILE = "reconciliation.html"
RECONCILIATION_FIGURES_FILE = "reconciliation.json"
COSTS_MET_FILE = "costs-met.yaml"
"""The costs that were paid, as settings for the next training."""


def root_of_sessions(given: Path | None) -> Path:
    """The folder that contains the session folders: the given one, or live/ in the working folder."""
    return (Path("live") if given is None else given.expanduser()).absolute()


def is_session(folder: Path) -> bool:
    """Whether the folder is a session. True also for a folder without read permission; its reader reports that."""
    try:
        return stat.S_ISREG((folder / JOURNAL_FILE).stat().st_mode)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)


def last_sign_of_life(folder: Path) -> float:
    """When heartbeat, status or state was last written, in seconds since 1970; 0: never."""
    times = [0.0]
    for name in (HEARTBEAT_FILE, STATUS_FILE, STATE_FILE):
        with contextlib.suppress(OSError):
            times.append((folder / name).lstat().st_mtime)
    return max(times)
