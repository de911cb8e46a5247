"""Ranks go on in more or fewer environments, as one process does."""

from typing import Any

import pytest

from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.ranks import rows_of
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import N_STEPS, TASKS, hash_of, trainer_of

pytestmark = pytest.mark.long


def trained_in_changing_numbers(ranks: Any, numbers: list[int]) -> tuple[str, int]:
    """Trains one iteration in each of these numbers of environments; what it ends with, and after which step."""
    with trainer_of(ranks, "masked", n_envs=numbers[0], minibatch_size=16, timesteps=N_STEPS * sum(numbers)) as trainer:
        trainer.train_episode_vectorized()
        for n_envs in numbers[1:]:
            rows = slice(None) if ranks is None else rows_of(ranks.rank, ranks.size, n_envs)
            later = ParallelEnv(([TASKS["masked"][0]] * n_envs)[rows], num_workers=0, copy=False)
            before = trainer._envs
            assert trainer.replace_envs(later) == ""
            before.close()
            trainer.train_episode_vectorized()
        return hash_of(trainer), trainer.global_step


def test_ranks_learn_what_one_process_learns_in_changing_numbers_of_environments(server: RankServer):
    numbers = [4, 9, 3, 12]
    (alone,) = server.values(trained_in_changing_numbers, 0, numbers)
    assert alone[1] == N_STEPS * sum(numbers)
    for size in (1, 2, 3):
        assert server.values(trained_in_changing_numbers, size, numbers) == [alone] * size
