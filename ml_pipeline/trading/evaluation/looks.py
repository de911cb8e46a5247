"""Record looks at test data: one line per look, by the fingerprint of the data.

The lines are stored in the user's state folder, so that looks count across copies of a study, roots, and studies on the
same data; and in the folder of the evaluated run, so that they are copied with it.
"""

import json
import os
import socket
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.runtime.files import alone, open_regular, path_inside
from ml_pipeline.runtime.user_key import NoKey, state_folder

LOOKS_FILE = "test_looks.jsonl"
"""File in a run folder: the looks at the test split by its policy."""
LOOKED_AT = frozenset({"test", "all"})
"""The splits that hold test bars."""
_FOLDER = "test_looks"
_LOCK_TIMEOUT_S = 5.0
_MOST_BYTES = 20_000_000
_LONGEST = 300
_MOST_NAMED = 8


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _this_process() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


@dataclass(frozen=True)
class Look:
    """One look. what: who looked, in words. when: ISO 8601, UTC. by: host and process.

    beside: the folder of the evaluated run; None: record the look only in the user's state folder.
    Two lines with the same time and process are one look, at several markets or recorded twice.
    """

    what: str
    when: str = field(default_factory=_now)
    by: str = field(default_factory=_this_process)
    beside: Path | None = None


def evaluation_look(folder: str | Path | None) -> Look:
    """The look of an evaluation, whose report is in a folder or is not written."""
    return Look("a Python program" if folder is None else f"the evaluation in {shown_path(Path(folder))}")


def record_look(look: Look, fingerprints: Iterable[str]) -> None:
    """Record a look before it happens. A failure to write is one warning and does not stop the evaluation."""
    fingerprints = list(fingerprints)
    line = {"when": look.when, "what": in_one_line(look.what, _LONGEST), "by": look.by}
    failed: Exception | None = None
    for fingerprint in fingerprints:
        try:
            path = state_folder() / _FOLDER / f"{fingerprint}.jsonl"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _append(path, line)
        except (OSError, NoKey) as error:
            failed = error
    if look.beside is not None:
        with suppress(OSError):  # a read-only folder; the state folder has the look
            _append(look.beside / LOOKS_FILE, {**line, "data": fingerprints})
    if failed is not None:
        warnings.warn(
            f"This look at the test split is not counted: {failed}. Set XDG_STATE_HOME to a writable folder.",
            stacklevel=2,
        )


def read_looks(fingerprints: Iterable[str], folders: Iterable[Path] = ()) -> list[Look]:
    """All looks at these data in the user's state folder and in the runs' folders, earliest first.

    Incomplete lines and unreadable files are left out.
    """
    found: dict[tuple[str, str], Look] = {}
    with suppress(NoKey):
        for fingerprint in fingerprints:
            path = path_inside(state_folder() / _FOLDER, f"{fingerprint}.jsonl")
            for look in () if path is None else _looks_in(path):
                found.setdefault((look.when, look.by), look)
    for folder in folders:
        for look in _looks_in(folder / LOOKS_FILE):
            found.setdefault((look.when, look.by), look)
    return sorted(found.values(), key=lambda look: look.when)


def looks_in_words(looks: Sequence[Look]) -> str:
    """A sentence about how often, by whom and when the test split was used.

    >>> looks_in_words([Look("evaluate of a", "2026-05-04T03:02:01"), Look("evaluate of a", "2026-05-05T03:02:01")])
    'The test part of these data was looked at 2 times, by evaluate of a (2 times), from 2026-05-04 to 2026-05-05.'
    """
    if not looks:
        return "The test part of these data was not looked at."
    counts = Counter(look.what for look in looks)
    named = [what if n == 1 else f"{what} ({n} times)" for what, n in counts.most_common(_MOST_NAMED)]
    others = len(looks) - sum(n for _, n in counts.most_common(_MOST_NAMED))
    if others:
        named.append(f"and {others:,} others")
    first, last = looks[0].when[:10], looks[-1].when[:10]
    days = f"on {first}" if first == last else f"from {first} to {last}"
    times = "once" if len(looks) == 1 else f"{len(looks):,} times"
    return f"The test part of these data was looked at {times}, by {', '.join(named)}, {days}."


def _looks_in(path: Path) -> Iterator[Look]:
    try:
        with open_regular(path) as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict) and all(isinstance(values.get(name), str) for name in ("what", "when", "by")):
                what, when, by = (in_one_line(values[name], _LONGEST) for name in ("what", "when", "by"))
                yield Look(what, when, by)


def _append(path: Path, line: object) -> None:
    """Append a line under a lock, on a new line if the last one is incomplete. Raises OSError."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with alone(path.with_name(f".{path.name}.lock"), timeout_s=_LOCK_TIMEOUT_S):
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "a+b") as file:
            torn = file.seek(0, os.SEEK_END) > 0 and _last_byte(file) != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)
