"""A page of docs/ of which a benchmark writes one part anew: what stands between two markers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"

_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write_measured(page: Path, measured_part: str, figures: Mapping[str, Any]) -> None:
    """Write the measured part of docs/NAME.md, and the figures that it is made of into NAME.json beside it."""
    file = page.with_suffix(".json")
    file.write_text(json.dumps(figures, indent=1) + "\n")
    page.write_text(with_measured_part(page.read_text(), measured_part))
    print(f"Written: {page}, {page.with_suffix('.png')}, {file}")


def with_measured_part(page: str, measured_part: str) -> str:
    """The page with what is between the markers made anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{measured_part}\n\n{_END}{after}"
