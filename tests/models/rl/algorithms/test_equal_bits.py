"""The weights are the same bits for one process and for any number of ranks."""

from typing import Any

import pytest

from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import N_ITERATIONS, TASKS, hash_of, trainer_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]  # a first use compiles


class Kept:
    """A sink that keeps what depends on no clock."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.episodes: list[Any] = []

    def write(self, metrics, episodes) -> None:
        self.metrics.append(
            {name: value for name, value in metrics.items() if name[-2:] != "_s" and "second" not in name}
        )
        self.episodes += [episode._replace(time_s=0.0) for episode in episodes]

    def close(self) -> None:
        pass


def trained(ranks: Any, task: str, settings: dict[str, Any]) -> tuple[str, str, list[Any]]:
    """The hash after training, the figures of each iteration as text (where NaN equals NaN), the episodes."""
    with trainer_of(ranks, task, sink=(sink := Kept()), **settings) as trainer:
        trainer.train(progress=False)
        assert trainer.iteration == N_ITERATIONS
        return hash_of(trainer), repr(sink.metrics), sink.episodes


@pytest.mark.parametrize("task", TASKS)
def test_ranks_learn_what_one_process_learns(server: RankServer, task: str):
    (alone,) = server.values(trained, 0, task, {})
    assert alone[2], "no episode ended"
    for size in (1, 2, 3, 4):
        assert server.values(trained, size, task, {}) == [alone] * size


def test_ranks_equal_one_process_that_normalizes_step_by_step_where_observations_are_not_normalized(server: RankServer):
    (alone,) = server.values(trained, 0, "not normalized", {"normalize_update": "step", "normalize_rewards": True})
    settings = {"normalize_rewards": True}
    assert server.values(trained, 2, "not normalized", settings) == [alone] * 2
