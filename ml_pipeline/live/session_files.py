"""The folder of a trading session: what its files are called, and when they last showed life.

Whoever watches a session reads these files alone; nothing else needs the trading process to be alive.
"""

import contextlib
import errno
import stat
from pathlib import Path

from ml_pipeline.runs.state import STATE_FILE

JOURNAL_FILE = "journal.sqlite"
"""What was decided, ordered, filled and charged: the books, written before anything is sent."""
BROKER_FILE = "simulated-broker.sqlite"
"""The account of the simulated broker, which stands for one on another machine."""
BARS_FILE = "bars.csv"
"""Every bar as it was decided on, those that only warmed features up included, in the form that `train` reads."""
LEDGER_FILE = "ledger.csv"
"""The account bar by bar, as an evaluation writes it."""
LOG_FILE = "live.jsonl"
"""What happened, one JSON object a line; `session_log` lists the events."""
STATUS_FILE = "live.json"
"""The session at its last bar; rewritten whole."""
DECISION_FILE = "decision.json"
"""The last decision and every feature behind it; rewritten whole."""
HEARTBEAT_FILE = "heartbeat"
"""Touched every few seconds by the process that trades."""
REQUEST_FILE = "request"
"""What a person asks of the process: a file with the word `stop` or `flatten`."""
REPORT_FILE = "report.html"
RECONCILIATION_FILE = "reconciliation.html"
RECONCILIATION_FIGURES_FILE = "reconciliation.json"
COSTS_MET_FILE = "costs-met.yaml"
"""Costs as they were met, as settings for the next training."""


def root_of_sessions(given: Path | None) -> Path:
    """The folder that holds the folders of sessions: the one that is given, or live/ in the working folder."""
    return (Path("live") if given is None else given.expanduser()).absolute()


def is_session(folder: Path) -> bool:
    """Whether a folder holds a session, or may not be looked at: its reader then reports that."""
    try:
        return stat.S_ISREG((folder / JOURNAL_FILE).stat().st_mode)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)


def last_sign_of_life(folder: Path) -> float:
    """When the youngest of the files that tell of a session's life was written, in seconds since 1970; 0: never."""
    times = [0.0]
    for name in (HEARTBEAT_FILE, STATUS_FILE, STATE_FILE):
        with contextlib.suppress(OSError):
            times.append((folder / name).lstat().st_mtime)
    return max(times)
