"""A self-contained HTML page: style, tables and pictures are all in the file."""

import html
import io
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { --ink: #1c2330; --paper: #ffffff; --line: #d9dce1; --soft: #f2f4f7; --faint: #6b7280; --accent: #0b5fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --paper: #12161d; --line: #333a46; --soft: #1b212b; --faint: #9aa3b2; --accent: #6ea0ff; }
  img { filter: invert(.9) hue-rotate(180deg); }
}
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; overflow-wrap: normal; } td, th { padding: .2rem .9rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { border-bottom: 1px solid var(--line); }
img, svg { width: 100%; } .rows :is(img, svg) { min-width: 38rem; display: block; }
ul { padding-left: 1.2rem; } code { background: var(--soft); padding: .1rem .3rem; }
.rows { overflow-x: auto; }
.rows[data-scrolls]::before { content: "Scrolls sideways →"; position: sticky; left: 0; color: var(--faint);
  font-size: .8rem; }
.hint { color: var(--faint); font-size: .85rem; }
"""
# Tables and pictures that are wider than the page get a hint, and can be scrolled with the arrow keys.
_SCRIPT = """
for (const rows of document.querySelectorAll(".rows")) {
  new ResizeObserver(() => {
    const scrolls = rows.scrollWidth > rows.clientWidth + 1;
    if (rows.hasAttribute("data-scrolls") !== scrolls) rows.toggleAttribute("data-scrolls", scrolls);
    if (scrolls) rows.tabIndex = 0; else rows.removeAttribute("tabindex");
  }).observe(rows);
}
"""


def write_html_page(path: Path, title: str, parts: Iterable[str], *, style: str = "") -> None:
    """Write the page that `html_page` returns."""
    path.write_text(html_page(title, parts, style=style), encoding="utf-8")


def html_page(title: str, parts: Iterable[str], *, style: str = "") -> str:
    """A page with a title and HTML parts; empty parts are left out. style: CSS added to the default one."""
    metas = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"{metas}<title>{html.escape(title)}</title><style>{_STYLE}{style.lstrip()}</style>"
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *filter(None, parts), f"<script>{_SCRIPT}</script>"])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def paragraph(text: str, kind: str = "") -> str:
    """Plain text as a paragraph of a CSS class."""
    return f"{_opened('p', kind)}{html.escape(text)}</p>"


def bullet_list(sentences: Iterable[str], kind: str = "") -> str:
    """Plain texts as a list of a CSS class."""
    return _opened("ul", kind) + "".join(f"<li>{html.escape(each)}</li>" for each in sentences) + "</ul>"


def _opened(tag: str, kind: str) -> str:
    return f'<{tag} class="{kind}">' if kind else f"<{tag}>"


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts, the first row as header; it scrolls if the page is narrower."""
    header, *others = [[html.escape(cell) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in others)
    head = "".join(f"<th>{cell}</th>" for cell in header)
    return f'<div class="rows"><table><tr>{head}</tr>{body}</table></div>'


def png_of(figure: "Figure") -> bytes:
    """The figure as the content of a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def html_picture(png: bytes, description: str) -> str:
    """A PNG embedded in the page; on a narrow page it scrolls instead of shrinking below a readable size.

    description: alternative text for readers who cannot see it.
    """
    image = f'<img alt="{html.escape(description)}" src="data:image/png;base64,{b64encode(png).decode()}">'
    return f'<div class="rows">{image}</div>'
