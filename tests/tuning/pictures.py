"""Draw the picture of docs/guides/judge-a-winner.md: the report of a study of 120 trials on noise.

python -m tests.tuning.pictures
"""

import shutil
import tempfile
from pathlib import Path

import optuna

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.report.study_report import write_study_report
from tests.tuning.written_studies import noise_study

DOCS = Path(__file__).resolve().parents[2] / "docs"


def draw(report: Path, picture: Path, *, width: int = 1200, height: int = 1500, scheme: str = "light") -> None:
    """The upper part of a study's page as a picture. Raises UserError without Chromium."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise UserError("Drawing a picture needs Chromium, which is not installed; install it.")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-drawn=true]")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        study = noise_study(Path(folder), 120, name="eurusd_5m")
        study.set_user_attr("identity", {"objective": {"objective": "score"}, "base settings": {}})  # as of `tune`
        draw(write_study_report(study, Path(folder), n_trials=150).path, DOCS / "study-report.png")
