"""What the worker of a trial tells the other ranks of a run: which run it is, and where they meet."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RankOrder:
    """settings: of the run, flat, all of them. checkpoint: where it goes on. port: by which the ranks meet. sys_path:
    the worker's, so that a rank finds the user's modules."""

    rank: int
    size: int
    port: int
    timeout_s: float
    settings: Mapping[str, Any]
    checkpoint: str | None
    sys_path: list[str]

    def line(self) -> bytes:
        """What `order_in` reads, in another process."""
        return json.dumps(asdict(self), default=str).encode() + b"\n"


def order_in(line: bytes) -> RankOrder:
    """The order that a line holds."""
    return RankOrder(**json.loads(line))
