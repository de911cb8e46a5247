"""Serve reports and the files that they link to in a sandbox, without network access and without access to other pages.

The address of a report mirrors its folder, so its relative links work as on disk. A sandboxed page has no origin, so
the browser treats its links as requests from another site. The address therefore has a ticket that other sites cannot
know, which gives access to everything below one folder.

A report is shown in a frame whose page allows navigation to this server only: otherwise a report could open another
site and send data in the address.
"""

import html
import os
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ml_pipeline.config.wording import in_one_line
from ml_pipeline.dashboard.files import NotThere, is_plain, open_file
from ml_pipeline.dashboard.web.access import FILES, FRAME_POLICY, REPORT_POLICY, Tickets
from ml_pipeline.reporting.html_page import html_page
from ml_pipeline.reporting.report_files import PAGE_FILE

_LARGEST_FILE = 256 * 2**20
_MOST_LISTED = 500
_KINDS = {
    **dict.fromkeys((".csv", ".json", ".jsonl", ".log", ".md", ".txt", ".yaml", ".yml"), "text/plain; charset=utf-8"),
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".svg": "image/svg+xml",
    ".gif": "image/gif",
    ".mp4": "video/mp4",
}
"""Served file types by suffix; weights, databases and pickles are not served."""
_ACTIVE = ("text/html; charset=utf-8", "image/svg+xml")
_HEADERS = {"content-security-policy": REPORT_POLICY}
_FRAME = (
    "html, body, iframe { width: 100%; height: 100%; margin: 0; border: 0; display: block; color-scheme: light dark; }"
)


class Reports:
    """roots: the folders of runs and of sessions. A root that is itself a run is addressed by its own name."""

    def __init__(self, runs: Path, sessions: Path, tickets: Tickets) -> None:
        self._roots = {"runs": runs, "sessions": sessions}
        self._tickets = tickets

    def routes(self) -> list[Route]:
        return [Route(FILES + "{ticket}/{kind}/{path:path}", self.file)]

    def opened(self, request: Request, kind: str, path: Path, otherwise: str) -> Response:
        """A report in a frame or, if the query has `framed`, a redirect to it.

        Raises NotThere with the message `otherwise` if the file is missing or not a regular file.
        """
        file = open_file(path)
        if file is None:
            raise NotThere(otherwise)
        file.close()
        root = self._roots[kind]
        parts = path.absolute().relative_to(root.absolute()).parts
        if len(parts) == 1:  # the root is itself a run, a study or a session
            parts = (root.absolute().name, *parts)
        names = "/".join(quote(os.fsencode(each)) for each in parts)
        address = f"{FILES}{self._tickets.of(kind, parts[0])}/{kind}/{names}"
        return RedirectResponse(address, 307) if "framed" in request.query_params else _framed(address, path)

    def file(self, request: Request) -> Response:
        """A file below a folder of runs or sessions, or a listing of a folder."""
        kind, asked = request.path_params["kind"], request.path_params["path"]
        path = self._path_of(kind, asked)
        if path.is_dir():
            return self._folder(path, asked)
        media_type = _KINDS.get(path.suffix.lower())
        file = open_file(path) if media_type else None
        if file is None:
            raise NotThere(f'There is no report, text or picture "{in_one_line(asked)}".')
        with file:
            if media_type in _ACTIVE and request.headers.get("sec-fetch-dest") == "document":  # opened directly
                return _framed(request.url.path, path)
            return Response(file.read(_LARGEST_FILE), media_type=media_type, headers=_HEADERS)

    def _path_of(self, kind: str, asked: str) -> Path:
        """The path of a requested file. Raises NotThere if it is outside the root."""
        nothing = NotThere(f'There is no file "{in_one_line(asked)}".')
        root = self._roots.get(kind)
        parts = asked.removesuffix("/").split("/")
        if root is None or not all(map(is_plain, parts)):
            raise nothing
        is_root = parts[0] == root.absolute().name and not (root / parts[0]).exists()  # the root is a run or a study
        top, inside = (root if is_root else root / parts[0]), parts[1:]
        path = top.joinpath(*inside)
        try:
            real = top.resolve()
            if not real.is_relative_to(root.resolve()) or path.resolve() != real.joinpath(*inside):  # through a link
                raise nothing
        except (OSError, ValueError, RuntimeError) as error:
            raise nothing from error
        return path

    @staticmethod
    def _folder(path: Path, asked: str) -> Response:
        if not asked.endswith("/"):
            return RedirectResponse(f"{quote(os.fsencode(path.name))}/", 307)
        if (path / PAGE_FILE).is_file():
            return RedirectResponse(PAGE_FILE, 307)
        with os.scandir(path) as entries:
            found = sorted((each.name, each.is_dir(follow_symlinks=False)) for each in entries if is_plain(each.name))
        names = [
            name + "/" * is_folder for name, is_folder in found if is_folder or Path(name).suffix.lower() in _KINDS
        ]
        items = [
            f'<li><a href="./{quote(os.fsencode(name))}">{html.escape(in_one_line(name))}</a></li>'
            for name in names[:_MOST_LISTED]
        ]
        more = len(names) - len(items)
        parts = [
            '<p><a href="../">The folder above</a></p>' if "/" in asked.removesuffix("/") else "",
            "<p>No report yet. Texts and pictures in this folder:</p>"
            if items
            else "<p>This folder has no texts or pictures.</p>",
            f"<ul>{''.join(items)}</ul>",
            f"<p>and {more:,} more</p>" if more else "",
        ]
        return HTMLResponse(html_page(in_one_line(path.name), parts).encode(errors="replace"), headers=_HEADERS)


def _framed(address: str, path: Path) -> Response:
    """A page that shows the address in a frame, and allows no navigation to other sites."""
    title = html.escape(in_one_line(path.absolute().parent.name))
    content = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_FRAME}</style>'
        f'</head><body><iframe sandbox="allow-scripts" src="{html.escape(address)}" title="{title}"></iframe>'
        "</body></html>"
    )
    return HTMLResponse(content.encode(errors="replace"), headers={"content-security-policy": FRAME_POLICY})
