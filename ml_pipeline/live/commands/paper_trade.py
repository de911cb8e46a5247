"""Command: trade a trained policy bar by bar, and show, end, reconcile or adjust sessions.

ml-pipeline paper-trade --model models/eurusd_5m/current --broker simulated --replay prices.csv --speed 60
ml-pipeline paper-trade --model checkpoints/RUN/best.pt --config trade.yaml
ml-pipeline paper-trade status
ml-pipeline paper-trade stop NAME
ml-pipeline paper-trade flatten NAME
ml-pipeline paper-trade reconcile NAME
ml-pipeline paper-trade adjust NAME --deposit 500 --why "more capital"
"""

import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ml_pipeline import __version__
from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.live.config import PaperTradeConfig, PaperTradeStart, parse_paper_trade
from ml_pipeline.live.sessions import ended, find_session, find_sessions, status_line, status_lines
from ml_pipeline.live.supervision.requests import Asked, ask
from ml_pipeline.monitoring.console import entry, outlive_readers
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once

PROG = "paper-trade"
_EVERY_S = 1.0
_NEXT_LINE = "\n          "  # aligned with the sentence, which follows the time
LOOK_AT_IT = 3
"""The exit code after which a service manager does not restart the session."""
TRY_AGAIN = 75
"""The exit code after an outage that may pass (EX_TEMPFAIL of sysexits.h); a service manager restarts the session."""


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Trade until the bars end or a stop is requested, or perform the action. Returns 0.

    Returns 3 if a guard, a difference, a failed feature or ruin ended the session, which needs attention, 75 if an
    outage did, and 128 + signal if a signal did. Exits with code 2 after one sentence if something is invalid.
    """
    with entry(prog):
        start = parse_paper_trade(argv, prog=prog, description=COMMANDS["paper-trade"].sentence)
        if start.action is None:
            return _trade(start.config())
        return _act(start)


def _act(start: PaperTradeStart) -> int:
    if start.action == "status":
        return _show_status(start)
    if start.action == "adjust":
        return _adjust(start)
    folder = find_session(start.root, start.name)
    if start.action == "reconcile":
        return _reconcile(folder)
    else:
        _ask_for_end(folder, "stop" if start.action == "stop" else "flatten")
    return 0


def _show_status(start: PaperTradeStart) -> int:
    """Print the first session on one screen, and the others in one line each."""
    first, *others = find_sessions(start.root, start.name)
    print(*status_lines(first), sep="\n")
    if others:
        print("", *map(status_line, others), "", "`ml-pipeline paper-trade status NAME` shows one of them.", sep="\n")
    return 0


def _ask_for_end(folder: Path, what: Asked) -> None:
    how = ended(folder)
    if how is not None and what == "stop":  # the request would stay and stop the next start
        print(f"{how} There is nothing to stop.")
        return
    ask(folder, what)
    if how is not None:
        print(f"{how} Its next start closes all positions and stops.")
        return
    done = "stops and holds its positions" if what == "stop" else "closes all positions and stops"
    print(f"The session {folder.name} {done}; see `ml-pipeline paper-trade status {folder.name}`.")


def _reconcile(folder: Path) -> int:
    with exiting_at_once():
        from ml_pipeline.live.reconciliation.report import reconcile_session

    found = reconcile_session(folder)
    print(found.text)
    print(f"\nWritten to {shown_path(found.page)}; settings for the next training: {shown_path(found.settings)}")
    return 0


def _adjust(start: PaperTradeStart) -> int:
    """Announce money that was moved, or list what was booked."""
    from ml_pipeline.live.cash_flows import adjustments_table, announce

    if start.name is None:
        raise UserError('Name the session, as in `paper-trade adjust NAME --deposit 500 --why "more capital"`.')
    folder = find_session(start.root, start.name)
    if not any(value is not None for value in start.money.values()):
        print(adjustments_table(folder))
        return 0
    announced = announce(folder, **start.money)
    print(
        f"Announced: {announced.kind} of {abs(announced.cash):,.2f} ({announced.what}). The session {folder.name} "
        "books it when its account shows it."
    )
    return 0


def _trade(config: PaperTradeConfig) -> int:
    with exiting_at_once():  # importing torch takes seconds
        from ml_pipeline.live.session import PaperTrading
        from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals

    outlive_readers()
    stop, terminal = StopRequest(), _Terminal()
    signals: list[int] = []

    def note(number: int) -> None:
        signals.append(number)
        stop.request(str(Interrupted(number)))

    ask_person = input if sys.stdin.isatty() else None
    session = PaperTrading(config, stop=stop, say=terminal.say, ask=ask_person, package_version=__version__)
    print(f"Session {session.folder.name} in {shown_path(session.folder)}", flush=True)
    with stop_on_signals(note):
        result = session.run()
    terminal.finish()
    if result.table is not None:
        print(f"\n{result.table}")
    print(f"\n{result.reason}\nWritten to {shown_path(result.folder)}", flush=True)
    if signals:
        return 128 + signals[0]
    return 0 if result.asked else TRY_AGAIN if result.again else LOOK_AT_IT


class _Terminal:
    """Prints at most one message per second and counts the others."""

    def __init__(self) -> None:
        self._at = -_EVERY_S
        self._left: Counter[str] = Counter()

    def say(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._at < _EVERY_S:
            self._left[sentence.partition(" ")[0]] += 1
            return
        self.finish()
        self._at = now
        with suppress(RuntimeError):  # a signal arrived while the main thread was writing to the terminal
            print(time.strftime("%H:%M:%S"), sentence.replace("\n", _NEXT_LINE), sep="  ", flush=True)

    def finish(self) -> None:
        """Print how many messages were skipped."""
        if left := sum(self._left.values()):
            print(f"          and {counted(left, 'more line')} in live.jsonl", flush=True)
        self._left.clear()
