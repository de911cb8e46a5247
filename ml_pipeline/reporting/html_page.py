"""One HTML page that needs no network: its style, tables and pictures are all in the file."""

import html
import io
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { border-bottom: 1px solid #c4c9d2; }
img { width: 100%; } ul { padding-left: 1.2rem; }
"""


def write_html_page(path: Path, title: str, parts: Iterable[str], *, style: str = "") -> None:
    """Write the page of `html_page`."""
    path.write_text(html_page(title, parts, style=style), encoding="utf-8")


def html_page(title: str, parts: Iterable[str], *, style: str = "") -> str:
    """A page of HTML parts below its title; empty parts are left out. style: CSS after the usual one."""
    metas = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"{metas}<title>{html.escape(title)}</title><style>{_STYLE}{style.lstrip()}</style>"
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *filter(None, parts)])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts, the first row of which is its header."""
    header, *others = [[html.escape(cell) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in others)
    return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>{body}</table>"


def png_of(figure: "Figure") -> bytes:
    """The figure as the content of a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def html_picture(png: bytes, description: str) -> str:
    """A PNG within the page; description: its text for readers who cannot see it."""
    return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{b64encode(png).decode()}">'
