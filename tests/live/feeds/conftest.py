"""A growing file, for all tests of it."""

import pytest

from tests.live.feeds.growing_files import Written


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path / "S0.csv")
    yield made
    made.feed.close()
