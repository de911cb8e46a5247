"""A page in Debian's Chromium, for tests that look at what the program writes as its users do."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def browser_page() -> Iterator[Any]:
    """Opens a file in a browser: `browser_page(path, **context)`; what the console says as an error fails the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed; the page was not opened in a browser")
    errors: list[str] = []
    with playwright.sync_playwright() as started:
        # Root may not sandbox, as in a container; the pages are our own.
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])

        def opened(path: Path, **context: Any) -> Any:
            page = browser.new_context(**context).new_page()
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: errors.append(request.url) if "file:" not in request.url else None)
            page.goto(path.resolve().as_uri())
            return page

        yield opened
        browser.close()
    assert errors == []
