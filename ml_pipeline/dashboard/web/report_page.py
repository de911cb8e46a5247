"""Reports, as a site of their own: their scripts run without a network and reach nothing of the page."""

from pathlib import Path

from starlette.responses import HTMLResponse, Response

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.run_files import open_file
from ml_pipeline.dashboard.web.guard import REPORT_POLICY

_LARGEST_REPORT = 256 * 2**20


class NoSuchReport(UserError):
    """A run or a study has no report yet."""


def report_page(path: Path, otherwise: str) -> Response:
    """The report that lies there, unless it is a link. Raises NoSuchReport, which says `otherwise`."""
    file = open_file(path)
    if file is None:
        raise NoSuchReport(otherwise)
    with file:
        return HTMLResponse(file.read(_LARGEST_REPORT), headers={"content-security-policy": REPORT_POLICY})
