"""service.log: what a service did, each line with its time in UTC; and whoever listens to it."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ml_pipeline.runtime.regular_file import only_regular

LOG_FILE = "service.log"


class EventLog:
    """Adds events to a file, and passes their sentences on. For several threads; never raises."""

    def __init__(self, path: Path, say: Callable[[str], None] | None) -> None:
        self.path = path
        self._say = say

    def tell(self, sentence: str, *, details: str = "") -> None:
        """details: lines that only the file gets, such as a traceback."""
        lines = f"{sentence}\n{details}" if details else f"{sentence}\n"
        with suppress(OSError), open(self.path, "a", encoding="utf-8", opener=only_regular) as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {lines}")
        if self._say is not None:
            with suppress(Exception):  # whoever listens does not end the service
                self._say(sentence)
