"""Files that are written whole or not at all: a power cut leaves the old one or the new one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def written_whole(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """A file to write in the block, opened with `options`; at its end it takes the place of `path`.

    Where the block fails, `path` stays what it was. Raises OSError where the file cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, mode.replace("w", "x"), **options) as file:  # never through a link that lies there
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names of its files are on the disk, after one was renamed."""
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
