"""A page of docs/ of which a benchmark writes one part anew: what stands between two markers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"

Figures = Mapping[str, Any]
Row = Mapping[str, Any]

_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write_measured(page: Path, measured_part: str, figures: Mapping[str, Any]) -> None:
    """Write the measured part of docs/NAME.md, and the figures that it is made of into NAME.json beside it."""
    file = page.with_suffix(".json")
    file.write_text(json.dumps(figures, indent=1) + "\n")
    page.write_text(with_measured_part(page.read_text(), measured_part))
    print(f"Written: {page}, {file}")


def with_measured_part(page: str, measured_part: str) -> str:
    """The page with what is between the markers made anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{measured_part}\n\n{_END}{after}"


def measured_on(machine: Row, library: str) -> str:
    """On which machine and with which versions a measurement was made; the beginning of a sentence."""
    return f"Measured on {machine['cores']:g} cores ({machine['system']}, Python {machine['python']}, {library})"


def sections(intro: str, conclusions: Sequence[str], picture: str, tables: str) -> str:
    """What a page says of one measurement: how it was made, what follows, and what that follows from."""
    return "\n\n".join([intro, "## What follows", *conclusions, picture, tables])


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first line is its head."""
    head, *body = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body))
