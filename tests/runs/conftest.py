"""What holds for every test of runs."""

import pytest

from tests.runs.folder_holder import folder_holder


@pytest.fixture(scope="module", autouse=True)
def _brief_reports(short_built_in_market: None, undrawn_reports: None) -> None:
    """Runs are about other things. A module that looks at pictures has an `undrawn_reports` that changes nothing."""


@pytest.fixture
def holder(tmp_path):
    """A process that is the writer of tmp_path / "run"."""
    with folder_holder(tmp_path / "run") as process:
        yield process
