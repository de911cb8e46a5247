"""Processes that can be ranks, for the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.models.rl.distributed.rank_server import RankServer, rank_server


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    with rank_server() as server:
        yield server
