"""How far a page has read: the list of runs up to a version, and of each chosen run so many rows.

It is the id of every event. A page that lost its connection sends the last one, and goes on there: the server keeps
nothing for it.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_ID = re.compile(r"(?P<server>[0-9a-f]{8})-(?P<version>\d{1,15})(?:;(?P<rows>[\d.,]*))?", re.ASCII)
_ROWS = re.compile(r"\d{1,15}\.\d{1,15}\.\d{1,15}", re.ASCII)
SERVER = secrets.token_hex(4)  # numbers of versions and generations mean nothing to another process


class Rows(NamedTuple):
    """So many rows of a generation, with so many names of metrics; generation 0 is none at all."""

    generation: int = 0
    n_rows: int = 0
    n_names: int = 0


@dataclass(frozen=True)
class Position:
    """version: of the list of runs. rows: of each chosen run, in the order in which they are named."""

    version: int = 0
    rows: Sequence[Rows] = field(default=())

    @classmethod
    def parse(cls, text: str, n_runs: int) -> "Position":
        """What `str` wrote; the very beginning where another process wrote it, or nobody."""
        found = _ID.fullmatch(text)
        if found is None or found["server"] != SERVER:
            return cls(0, [Rows()] * n_runs)
        rows = [Rows(*map(int, each.split("."))) for each in (found["rows"] or "").split(",") if _ROWS.fullmatch(each)]
        return cls(int(found["version"]), rows if len(rows) == n_runs else [Rows()] * n_runs)

    def __str__(self) -> str:
        return f"{SERVER}-{self.version};" + ",".join(".".join(map(str, each)) for each in self.rows)
