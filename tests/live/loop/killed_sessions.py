"""Runs a session in a child that is killed, again and again, until it has ended: for the tests of kills.

python -m tests.live.loop.killed_sessions MODEL ROOT PRICES SEED KILLS [every FIRST LAST]

The modules are imported once, and each attempt is a fork. At random: SIGKILL after a random time, or at a random one of
the places where something is written or the broker is called, before or after it. every: at each of these places in
turn, from number FIRST to LAST. Prints how often the child was killed before the session ended.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.brokers.store import AccountStore
from ml_pipeline.live.record import session_record
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import GrowingFile
from tests.live.loop.sessions import session

_PLACES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (Journal, ("add_bar", "add_decision", "add_orders", "update_order", "add_fill", "set_snapshots", "add_log_lines")),
    (Journal, ("set_meta", "add_model", "close")),
    (SimulatedBroker, ("submit", "poll", "cancel", "market_closed_bar", "orders", "account")),
    (AccountStore, ("write",)),
    (session_record, ("write_status",)),
    (session_record, ("write_status",)),
)


class _Killer:
    """Ends this process when the place with this number is reached; counted from 1."""

    def __init__(self, at: int | None) -> None:
        self.at, self.passed = at, 0

    def pass_by(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        for owner, names in _PLACES:
            for name in names:
                setattr(owner, name, self._watched(getattr(owner, name)))
        GrowingFile.add = self._torn(GrowingFile.add)  # type: ignore[method-assign]

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **settings: Any) -> Any:
            self.pass_by()
            result = function(*args, **settings)
            self.pass_by()
            return result

        return watched

    def _torn(self, append: Callable[[GrowingFile, str], None]) -> Callable[[GrowingFile, str], None]:
        """Write a file in two parts, and pass by between them."""

        def torn(file: GrowingFile, text: str) -> None:
            append(file, text[: len(text) // 2])
            self.pass_by()
            append(file, text[len(text) // 2 :])

        return torn


def attempt(model: Path, root: Path, prices: Path, *, at: int | None, after_s: float | None) -> bool:
    """One start of the session in a fork; whether it ran to its end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            killer = _Killer(at)
            killer.install()
            result = session(model, root, prices=prices).run()
            code = 0 if result.status == "finished" else 1
        finally:
            os._exit(code)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "the session failed"
        return True
    assert os.WTERMSIG(status) == signal.SIGKILL
    return False


def main(argv: list[str]) -> None:
    model, root, prices = map(Path, argv[:3])
    generator = random.Random(int(argv[3]))
    most, kills = int(argv[4]), 0
    places = iter(range(int(argv[6]), int(argv[7]))) if len(argv) > 5 else None
    while kills < most:
        at: int | None = None
        after_s: float | None = None
        if places is not None:
            at = next(places, None)
            if at is None:
                break
        elif generator.random() < 0.5:
            at = generator.randrange(1, 150)
        else:
            after_s = generator.uniform(0.0, 0.5)
        if attempt(model, root, prices, at=at, after_s=after_s):
            break
        kills += 1
    if not attempt(model, root, prices, at=None, after_s=None):
        raise AssertionError("it was not killed, and yet did not end")
    print(kills)


if __name__ == "__main__":
    main(sys.argv[1:])
