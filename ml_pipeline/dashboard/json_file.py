"""A file with one JSON object that somebody else rewrites whole; what did not change is not read again."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.dashboard.run_files import open_file

_LARGEST_FILE = 256 * 2**20


class JsonFile:
    """values: what it held when it was last read. written_s: when that was written, in seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: Mapping[str, Any] = {}
        self.written_s = 0.0
        self._seen: object = None

    def refresh(self) -> None:
        """Read it again where it changed. Raises ValueError, UserError or OSError where it holds no object."""
        seen, self._seen = self._seen, None  # where this fails, the next call looks again
        file = open_file(self.path)
        if file is None:
            raise ValueError("it is no plain file")
        with file:
            found = os.fstat(file.fileno())
            now = found.st_ino, found.st_size, found.st_mtime_ns
            if now != seen:
                values = json.loads(file.read(_LARGEST_FILE))
                if not isinstance(values, dict):
                    raise ValueError("it holds no object")
                self.values, self.written_s = values, found.st_mtime
        self._seen = now
