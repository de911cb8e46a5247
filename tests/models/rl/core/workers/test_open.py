import pytest

from ml_pipeline.models.rl.core.workers.choice import HERE, Division
from ml_pipeline.models.rl.core.workers.open import divide, split


@pytest.mark.parametrize("n_parts", [1, 2, 3, 7])
def test_parts_cover_every_environment_once_and_differ_by_one(n_parts: int) -> None:
    parts = split(range(5, 12), n_parts)
    assert [index for part in parts for index in part] == list(range(5, 12))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("division", [HERE, Division(3, steps_here=False), Division(3, steps_here=True)])
@pytest.mark.parametrize("num_envs", [4, 7, 64])
def test_every_environment_is_in_one_block(division: Division, num_envs: int) -> None:
    (blocks,) = divide(num_envs, 1, division)
    assert [index for block in blocks for index in block] == list(range(num_envs))
    assert len(blocks) == division.n_workers + division.steps_here


@pytest.mark.parametrize("n_workers", [0, 2, 5])
def test_groups_are_consecutive_environments_whoever_steps_them(n_workers: int) -> None:
    groups = divide(7, 2, Division(n_workers, steps_here=n_workers == 0))
    assert [[index for block in blocks for index in block] for blocks in groups] == [[0, 1, 2, 3], [4, 5, 6]]
    assert sum(map(len, groups)) == (n_workers or 2)


def test_a_group_has_no_more_workers_than_environments() -> None:
    assert [len(blocks) for blocks in divide(3, 2, Division(3, steps_here=False))] == [2, 1]
    assert [len(blocks) for blocks in divide(4, 4, Division(4, steps_here=False))] == [1, 1, 1, 1]
