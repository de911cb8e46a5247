"""A file with one JSON object that somebody else rewrites whole; what did not change is not read again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ml_pipeline.config.json_object import parse_json
from ml_pipeline.dashboard.run_files import open_file
from ml_pipeline.runtime.regular_file import FileIdentity

_LARGEST_FILE = 64 * 2**20
"""A study.json of 10,000 trials takes some 10 MB."""


class JsonFile:
    """values: what it held when it was last read. written_s: when that was written, in seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: Mapping[str, Any] = {}
        self.written_s = 0.0
        self._seen: FileIdentity | None = None
        self._refusal: str | None = None

    def refresh(self) -> None:
        """Read it again where it changed. Raises ValueError, UserError or OSError where it holds no object.

        What was refused is not read again either, as long as it stays the same.
        """
        file = open_file(self.path)
        if file is None:
            self._seen = None
            raise ValueError("it is no plain file")
        with file:
            found = os.fstat(file.fileno())
            now = FileIdentity.of(found)
            if now != self._seen:
                self._seen = None  # if the disk fails, the next call looks again
                try:
                    self.values, self.written_s = _object_in(file, found.st_size), found.st_mtime
                    self._refusal = None
                except ValueError as error:
                    self._refusal = str(error)
                self._seen = now
        if self._refusal is not None:
            raise ValueError(self._refusal)


def _object_in(file: BinaryIO, n_bytes: int) -> Mapping[str, Any]:
    if n_bytes > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE // 2**20} MiB")
    values = parse_json(file.read(_LARGEST_FILE))
    if not isinstance(values, dict):
        raise ValueError("it holds no object")
    return values
