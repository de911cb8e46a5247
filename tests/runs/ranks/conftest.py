"""Processes that can be ranks, for the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.models.rl.distributed.rank_server import RankServer, rank_server

collect_ignore = ["waiting_env.py"]  # it registers an id, which workers that are lent by other tests would import


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    with rank_server("tests.runs.ranks.small_ranked_runs") as server:
        yield server
