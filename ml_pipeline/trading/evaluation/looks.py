"""Who looked at the test part of which data: one line per look, under the fingerprint of the data.

The lines lie in the user's state folder, so that a look counts over copies of a study, roots, and studies on the same
data; and in the folder of the run that was evaluated, so that they are copied with it.
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
"""In the folder of a run: the looks at the test split by its policy."""
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
    """One look. what: did it, in words. when: ISO 8601, UTC. by: host and process.

    beside: the folder of the run that was evaluated; None: the user's state folder alone has the look.
    Two lines of the same moment and process are one look, at several markets or told twice.
    """

    what: str
    when: str = field(default_factory=_now)
    by: str = field(default_factory=_this_process)
    beside: Path | None = None


def evaluation_look(folder: str | Path | None) -> Look:
    """An evaluation whose report is in a folder, or nowhere."""
    return Look("a Python program" if folder is None else f"the evaluation in {shown_path(Path(folder))}")


def record_look(look: Look, fingerprints: Iterable[str]) -> None:
    """Write a look down before it happens. What cannot be written is one warning: it refuses no evaluation."""
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
        with suppress(OSError):  # a folder that is read-only; the state folder has it
            _append(look.beside / LOOKS_FILE, {**line, "data": fingerprints})
    if failed is not None:
        warnings.warn(
            f"This look at the test part of the data is not counted: {failed}. Set XDG_STATE_HOME to a folder that can "
            "be written.",
            stacklevel=2,
        )


def read_looks(fingerprints: Iterable[str], folders: Iterable[Path] = ()) -> list[Look]:
    """Every look at these data that this user's state folder or one of the runs' folders tells of, the earliest first.

    A torn line is left out, and so is a file that cannot be read.
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
    """How often, by what and when, as a sentence.

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
    """Add a line under a lock; after a torn one it begins anew. Raises OSError."""
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
