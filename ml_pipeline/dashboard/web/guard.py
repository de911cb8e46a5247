"""What stands before every answer: the refusals of `Access`, and headers by which a page loads nothing else."""

import html
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ml_pipeline.dashboard.web.access import FILES, Access, Refusal
from ml_pipeline.dashboard.web.json_answer import JsonAnswer

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report brings its scripts with it, and is shown within the page: it runs as a site of its own, without a network.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
# Around a report that is opened by itself: no policy of its own keeps a page from leaving for another site with what it
# shows, but the one of the page around it does.
FRAME_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_COOKIE_AGE_S = 30 * 24 * 3600
_READING = ("GET", "HEAD")


class Guard:
    """Answers for an application where `access` refuses, and adds the headers that its own answers do not have."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in added if each[0] not in given)]
            await send(message)

        request = Request(scope)
        refusal = self._access.refusal(request, changes=scope["method"] not in _READING)
        answer: ASGIApp = self._app
        if request.url.path == "/" and "token" in request.query_params and (refusal is None or refusal.status == 401):
            answer = self._with_token(request.query_params["token"])
        elif refusal is not None:
            answer = _refused(refusal, request)
        await answer(scope, receive, with_headers)

    def _with_token(self, token: str) -> Response:
        """Keep the token in a cookie, and go to the page whose address does not show it.

        By a page of its own: after a redirect the cookie would not be sent where the link stood on another site.
        """
        response = plain_page("The token is being kept ...", to_the_page=True)
        if self._access.token is not None:
            if not self._access.is_token(token):
                return plain_page("This token is wrong: open the address that the command printed.", status=401)
            response.set_cookie(
                self._access.cookie, token, max_age=_COOKIE_AGE_S, path="/", httponly=True, samesite="strict"
            )
        return response


def _refused(refusal: Refusal, request: Request) -> Response:
    if request.scope["path"] == "/" or request.scope["path"].startswith(FILES):
        return plain_page(refusal.sentence, status=refusal.status)
    return JsonAnswer({"error": refusal.sentence}, refusal.status)


def plain_page(sentence: str, *, status: int = 200, to_the_page: bool = False) -> HTMLResponse:
    """A page with one sentence. to_the_page: it leads on to the dashboard by itself."""
    refresh = '<meta http-equiv="refresh" content="0; url=/">' if to_the_page else ""
    link = '<p><a href="/">To the page</a></p>' if to_the_page else ""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}<title>ml-pipeline</title>'
        f'<link rel="stylesheet" href="/assets/page.css"></head><body class="plain"><p>{html.escape(sentence)}</p>'
        f"{link}</body></html>",
        status,
    )
