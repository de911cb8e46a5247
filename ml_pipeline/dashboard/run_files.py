"""Files of a run that is named by a stranger: no name leaves the folder of runs, no link and no pipe is followed."""

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.folders import is_run_folder
from ml_pipeline.runtime.regular_file import open_regular

_DEEPEST = 2  # folders below the root, as runs of several seeds lie in a folder of theirs
_TAIL_BYTES = 64 * 1024


class NoSuchRun(UserError):
    """The folder of runs holds no run of this name."""


def find_run(root: Path, name: str) -> Path:
    """The folder of a run, named as `read_summaries` does: relative to `root`, or as the root that is itself a run.

    Raises NoSuchRun, also for a name that would lead elsewhere.
    """
    unknown = NoSuchRun(f'{root} holds no run "{in_one_line(name)}"; a run is named as its folder is.')
    if is_run_folder(root):
        if name != root.absolute().name:
            raise unknown
        return root
    parts = name.split("/")
    if len(parts) > _DEEPEST or not all(map(is_plain, parts)):
        raise unknown
    folder = root.joinpath(*parts)
    try:
        is_run, is_inside = is_run_folder(folder), folder.resolve().is_relative_to(root.resolve())
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # a name that is too long or cannot be written, a link to itself
        raise unknown from error
    if not is_run:
        raise unknown
    if not is_inside:
        raise NoSuchRun(f"{folder} is a link that leads out of {root}, and is not followed; open its own folder.")
    return folder


def is_plain(part: str) -> bool:
    """Whether a name is that of a visible folder, and no path."""
    forbidden = set("/\\:\0") if os.name == "nt" else set("/\\\0")
    return bool(part) and not part.startswith(".") and not set(part) & forbidden


def open_file(path: Path) -> BinaryIO | None:
    """The file for reading; None where there is none, or something that is no plain file. Never waits.

    Raises UserError where it may not be read.
    """
    try:
        return open_regular(path, follow_links=False)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except OSError:  # missing, a link, a pipe, a folder
        return None


class Text(NamedTuple):
    """A stretch of a text file. start, end: its bytes. size: of the whole file."""

    text: str
    start: int
    end: int
    size: int


def read_text(path: Path, *, after: int | None = None, before: int | None = None, most: int = _TAIL_BYTES) -> Text:
    """At most `most` bytes: those after an offset, those before one, or the last; whole lines where lines are short.

    Where the file has become shorter than `after`, its end. Nothing where there is no such file.
    """
    file = open_file(path)
    if file is None:
        return Text("", 0, 0, 0)
    with file:
        size = os.fstat(file.fileno()).st_size
        if after is not None and 0 <= after <= size and size - after <= most:
            start, end = after, size
        else:
            end = size if before is None else max(min(before, size), 0)
            start = max(end - most, 0)
        file.seek(start)
        data = file.read(end - start)
    if start > 0 and after != start:  # begin with a line
        begin = data.find(b"\n") + 1
        start, data = start + begin, data[begin:]
    return Text(data.decode("utf-8", errors="replace"), start, start + len(data), size)
