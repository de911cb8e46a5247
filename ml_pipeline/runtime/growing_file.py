"""A file that others append to: what was added is read, and everything again if another file took its place."""

import os
from collections.abc import Iterator
from typing import BinaryIO

_COMPARED = 256  # bytes that were read last


class GrowingFile:
    """How far a file was read, in chunks that end with a line. Not for several threads at once.

    chunk_bytes: the longest chunk; one that holds no end of a line comes as it is. most_bytes: of more that was added,
    only the last so many bytes are read, and the first line of them may be torn.
    """

    def __init__(self, *, chunk_bytes: int = 4_000_000, most_bytes: int = 2**30) -> None:
        self._chunk_bytes, self._most_bytes = chunk_bytes, most_bytes
        self.forget()

    def forget(self) -> None:
        """Nothing was read, as where the file is gone."""
        self._identity: tuple[int, int] | None = None
        self._offset = 0  # up to here everything was read
        self._last_bytes = b""  # before that offset

    def goes_on(self, file: BinaryIO) -> bool:
        """Whether the open file is the one that was read before, grown or unchanged; if not, it will be read anew.

        Inodes are used again: a file that was deleted and written anew, longer, may have the number of the one before.
        So the last bytes that were read are compared as well.
        """
        found = os.fstat(file.fileno())
        identity = found.st_dev, found.st_ino
        if identity == self._identity:
            file.seek(self._offset - len(self._last_bytes))
            if file.read(len(self._last_bytes)) == self._last_bytes:
                return True
        self.forget()
        self._identity = identity
        return False

    def chunks(self, file: BinaryIO, *, last: bool = False) -> Iterator[bytes]:
        """What was added since the last call, in whole lines. last: also a last line that has no end."""
        self._offset = max(self._offset, os.fstat(file.fileno()).st_size - self._most_bytes)
        while True:
            file.seek(self._offset)
            chunk = file.read(self._chunk_bytes)
            is_full = len(chunk) == self._chunk_bytes
            end = chunk.rfind(b"\n") + 1
            if is_full or not last:
                chunk = chunk[:end] if end or not is_full else chunk
            if not chunk:
                return
            self._offset += len(chunk)
            self._last_bytes = (self._last_bytes + chunk[-_COMPARED:])[-_COMPARED:]
            yield chunk
