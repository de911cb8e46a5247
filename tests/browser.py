"""A page in Debian's Chromium, for tests that look at what the program writes as its users do."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One process for the tests of a module: to start it takes longer than to open a page."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed; the page was not opened in a browser")
    with playwright.sync_playwright() as started:
        # Root may not sandbox, as in a container; the pages are our own.
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[Any]:
    """Opens a file, or the address of a server of ours, as a new user would: `browser_page(path, **context)`.

    What the console says as an error fails the test, and so does a request to any other server.
    """
    errors: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            errors.append(f"{message.text} {message.location}")

    with contextlib.ExitStack() as contexts:

        def opened(place: Path | str, **context: Any) -> Any:
            address = place if isinstance(place, str) else place.resolve().as_uri()
            own = (urlsplit(address).scheme, urlsplit(address).netloc)
            page = contexts.enter_context(browser.new_context(**context)).new_page()
            page.on("console", note)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: None if _goes_to(request.url, own) else errors.append(request.url))
            page.goto(address)
            return page

        yield opened
    assert errors == [], errors


def _goes_to(url: str, own: tuple[str, str]) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or (parts.scheme, parts.netloc) == own
