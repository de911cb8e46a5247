"""What holds for every test of studies."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _brief_reports(undrawn_reports: None) -> None:
    """Nothing here looks at the pictures of a run's report."""
