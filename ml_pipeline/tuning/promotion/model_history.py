"""history.jsonl of a deployed model: every switch of `current`, and which version was deployed before another.

A line is a JSON object: "action" is promote, rollback, or found (`current` was switched by hand, or by a process that
was killed before it could write); "when" in UTC, "from" and "to" are versions, and a promotion names study and trial.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ml_pipeline.runs.trained.deployed import version_number
from ml_pipeline.runtime.regular_file import read_regular

HISTORY_FILE = "history.jsonl"
_MOST_BYTES = 16_000_000

Action = Literal["promote", "rollback", "found"]


class Switch(NamedTuple):
    """One switch of `current`. before, after: numbers of versions; before is None for the first."""

    action: str
    when: str
    before: int | None
    after: int
    details: Mapping[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        before = None if self.before is None else f"v{self.before}"
        return {"action": self.action, "when": self.when, "from": before, "to": f"v{self.after}", **self.details}


def new_switch(action: Action, before: int | None, after: int, **details: Any) -> Switch:
    """A switch that happens now."""
    return Switch(action, datetime.now(UTC).isoformat(timespec="seconds"), before, after, details)


def read_history(model: Path, current: int | None) -> list[Switch]:
    """The switches of a model's folder, the earliest first; lines that are none, such as a torn one, are left out.

    current: the version that is deployed; where the last line tells of another one, a switch "found" follows it.
    Raises OSError where the file cannot be read.
    """
    try:
        lines = read_regular(model / HISTORY_FILE, most_bytes=_MOST_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    switches = [switch for line in lines if (switch := _switch_in(line)) is not None]
    latest = switches[-1].after if switches else None
    if current is not None and current != latest:
        switches.append(new_switch("found", latest, current))
    return switches


def as_lines(switches: Sequence[Switch]) -> str:
    """The text of history.jsonl."""
    return "".join(f"{json.dumps(switch.as_json())}\n" for switch in switches)


def deployed_in_turn(switches: Sequence[Switch]) -> list[int]:
    """The versions that led to the one that is deployed, each after the one that a rollback from it returns to.

    >>> deployed_in_turn([new_switch("promote", None, 1), new_switch("promote", 1, 2), new_switch("promote", 2, 3)])
    [1, 2, 3]
    >>> deployed_in_turn([new_switch("promote", None, 1), new_switch("promote", 1, 2), new_switch("rollback", 2, 1)])
    [1]
    """
    versions: list[int] = []
    for switch in switches:
        if switch.action != "promote" and switch.after in versions:
            del versions[versions.index(switch.after) :]
        elif switch.after in versions:
            versions.remove(switch.after)
        versions.append(switch.after)
    return versions


def _switch_in(line: str) -> Switch | None:
    try:
        values = json.loads(line)
        action, when = str(values.pop("action")), str(values.pop("when"))
        before, after = values.pop("from"), version_number(values.pop("to"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None if after is None else Switch(action, when, version_number(str(before)), after, values)
