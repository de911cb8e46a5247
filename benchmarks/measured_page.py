"""The parts of docs/evidence.md that a benchmark writes: the text between two markers with its name."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "evidence.md"

Figures = Mapping[str, Any]
Row = Mapping[str, Any]


def write_measured(name: str, measured_part: str, figures: Figures, *, file: Path) -> None:
    """Write the measured part called `name` into the page, and its figures into `file`."""
    page = with_measured_part(PAGE.read_text(), name, measured_part)
    file.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(page)
    print(f"Written: {PAGE}, {file}")


def with_measured_part(page: str, name: str, measured_part: str) -> str:
    """The page with a new text between the markers of `name`.

    >>> with_measured_part("a <!-- x: begin --> old <!-- x: end --> b", "x", "new").split()
    ['a', '<!--', 'x:', 'begin', '-->', 'new', '<!--', 'x:', 'end', '-->', 'b']
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    assert has_begin, f"{PAGE.name} has no {begin}"
    assert has_end, f"{PAGE.name} has no {end}"
    return f"{before}{begin}\n\n{measured_part}\n\n{end}{after}"


def measured_on(machine: Row, library: str) -> str:
    """The machine and the versions of a measurement; the beginning of a sentence."""
    return f"Measured on {machine['cores']:g} cores ({machine['system']}, Python {machine['python']}, {library})"


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first line is its head."""
    head, *body = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body))
