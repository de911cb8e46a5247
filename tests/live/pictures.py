"""Draw the pictures of paper trading in docs/: a policy trained on the built-in market trades on its last bars, at a
broker that delays, splits and rejects orders; then the pages of the session and of its reconciliation.

python -m tests.live.pictures
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

from ml_pipeline import cli
from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.server import serve
from ml_pipeline.trading.market.synthetic import synthetic_market

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FAULTS = ["--sim-latency-s", "3600", "--sim-partial-fill-rate", "0.2", "--sim-reject-rate", "0.1"]


def trade(folder: Path) -> None:
    """A session in live/trend, and its reconciliation."""
    market = synthetic_market()
    rows = zip(market.times, *(getattr(market, name)[:, 0] for name in ("open", "high", "low", "close")), strict=True)
    lines = [f"{str(time)[:19]},{','.join(f'{price:.6f}' for price in prices)}" for time, *prices in rows]
    (folder / "trend.csv").write_text("\n".join(["time,open,high,low,close", *lines[-2500:]]) + "\n")
    train = ["train", "--n-envs", "8", "--total-timesteps", "40000", "--checkpoint-dir", "checkpoints/trend"]
    replay = ["paper-trade", "--model", "checkpoints/trend", "--replay", "trend.csv", "--name", "trend", *_FAULTS]
    for argv in (train, replay, ["paper-trade", "reconcile", "trend"]):
        if code := cli.main(argv):
            raise UserError(f"`ml-pipeline {' '.join(argv)}` ended with {code}.")


def draw(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise UserError("Drawing the pictures needs Chromium, which is not installed; install it.")
    with (
        serve(folder / "checkpoints", sessions=folder / "live", port=0) as server,
        sync_playwright() as started,
    ):
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, address, drawn, height in (
            ("dashboard-session.png", f"{server.url}#session=trend", "#session .study-chart[data-points]", 900),
            ("reconciliation.png", (folder / "live" / "trend" / "reconciliation.html").as_uri(), "canvas", 1100),
        ):
            page = browser.new_context(viewport={"width": 1440, "height": height}, color_scheme="light").new_page()
            page.goto(address)
            page.wait_for_selector(drawn)
            page.wait_for_timeout(1000)
            page.screenshot(path=DOCS / name)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        trade(Path(folder))
        draw(Path(folder))
