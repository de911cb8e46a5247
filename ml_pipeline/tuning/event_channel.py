"""How a process of a study tells the one that started it what it does: JSON objects, one per line, on its stdout."""

import json
import os
import threading


class EventChannel:
    """Takes this process's stdout; what libraries print goes to stderr from then on. In silence once nobody reads."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def tell(self, **event: object) -> None:
        line = json.dumps(event, default=str)
        with self._lock:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except (OSError, ValueError):  # whoever listened is gone
                pass
