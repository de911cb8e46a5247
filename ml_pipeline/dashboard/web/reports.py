"""Reports and what they link to, as sites of their own: their scripts run without a network, and reach no other page.

A report is served under an address that mirrors its folder, so that its relative links lead where they lead on disk.
The page of a report has no origin, so that the browser takes a click on its links for a request of a foreign site: the
address therefore carries a ticket, which no other site can know, for everything below one folder.

A report is shown in a frame, whose page lets it lead to nothing but this server: by itself it could open any site, with
what it shows in the address.
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
"""What is served, by the file's ending: no weights, no databases, no pickles."""
_ACTIVE = ("text/html; charset=utf-8", "image/svg+xml")
_HEADERS = {"content-security-policy": REPORT_POLICY}
_FRAME = (
    "html, body, iframe { width: 100%; height: 100%; margin: 0; border: 0; display: block; color-scheme: light dark; }"
)


class Reports:
    """roots: the folder of runs and that of sessions; one that is itself a run goes by its own name."""

    def __init__(self, runs: Path, sessions: Path, tickets: Tickets) -> None:
        self._roots = {"runs": runs, "sessions": sessions}
        self._tickets = tickets

    def routes(self) -> list[Route]:
        return [Route(FILES + "{ticket}/{kind}/{path:path}", self.file)]

    def opened(self, request: Request, kind: str, path: Path, otherwise: str) -> Response:
        """A report in a frame, or the way to it if the query says that it is `framed` already.

        Raises NotThere, which says `otherwise`, unless a plain file lies there.
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
        """A file below a folder of runs or sessions, or the list of what a folder holds."""
        kind, asked = request.path_params["kind"], request.path_params["path"]
        path = self._path_of(kind, asked)
        if path.is_dir():
            return self._folder(path, asked)
        media_type = _KINDS.get(path.suffix.lower())
        file = open_file(path) if media_type else None
        if file is None:
            raise NotThere(f'There is no report and no text or picture "{in_one_line(asked)}".')
        with file:
            if media_type in _ACTIVE and request.headers.get("sec-fetch-dest") == "document":  # its address was typed
                return _framed(request.url.path, path)
            return Response(file.read(_LARGEST_FILE), media_type=media_type, headers=_HEADERS)

    def _path_of(self, kind: str, asked: str) -> Path:
        """Raises NotThere for a path that would lead elsewhere."""
        nothing = NotThere(f'There is no file "{in_one_line(asked)}".')
        root = self._roots.get(kind)
        parts = asked.removesuffix("/").split("/")
        if root is None or not all(map(is_plain, parts)):
            raise nothing
        is_root = parts[0] == root.absolute().name and not (root / parts[0]).exists()  # itself a run or a study
        top, inside = (root if is_root else root / parts[0]), parts[1:]
        path = top.joinpath(*inside)
        try:
            real = top.resolve()
            if not real.is_relative_to(root.resolve()) or path.resolve() != real.joinpath(*inside):  # by a link
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
            "<p>It holds no report yet. Its texts and pictures:</p>"
            if items
            else "<p>It holds no text and no picture.</p>",
            f"<ul>{''.join(items)}</ul>",
            f"<p>and {more:,} more</p>" if more else "",
        ]
        return HTMLResponse(html_page(in_one_line(path.name), parts).encode(errors="replace"), headers=_HEADERS)


def _framed(address: str, path: Path) -> Response:
    """A page that shows what lies at the address, and that lets it lead nowhere else."""
    title = html.escape(in_one_line(path.absolute().parent.name))
    content = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_FRAME}</style>'
        f'</head><body><iframe sandbox="allow-scripts" src="{html.escape(address)}" title="{title}"></iframe>'
        "</body></html>"
    )
    return HTMLResponse(content.encode(errors="replace"), headers={"content-security-policy": FRAME_POLICY})
