"""A state of any number of ranks is continued by any other, bit for bit, wherever training was stopped."""

from typing import Any

import pytest

from ml_pipeline.config.errors import UserError
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import N_ENVS, N_STEPS, before_step, hash_of, trainer_of

pytestmark = pytest.mark.long


def stopped_in_a_rollout(ranks: Any, task: str, asked: int) -> tuple[int, bool, dict[str, Any]]:
    """Stops in the second rollout, which rank `asked` is told to: the step, whether in a rollout, the state."""
    with trainer_of(ranks, task) as trainer:
        if ranks is None or ranks.rank == asked:
            before_step(trainer, N_STEPS + 5, trainer.request_stop)
        trainer.train(progress=False)
        return trainer.global_step, trainer.mid_rollout, trainer.state_dict()


def stopped_after_the_first_iteration(ranks: Any, task: str) -> tuple[int, bool, dict[str, Any]]:
    with trainer_of(ranks, task) as trainer:
        trainer.train(after_iteration=lambda *_: trainer.request_stop(), progress=False)
        return trainer.global_step, trainer.mid_rollout, trainer.state_dict()


def continued(ranks: Any, task: str, state: dict[str, Any] | None) -> str:
    with trainer_of(ranks, task) as trainer:
        if state is not None:
            trainer.load_state_dict(state)
        trainer.train(progress=False)
        return hash_of(trainer)


def refused(ranks: Any, task: str, state: dict[str, Any]) -> str:
    with trainer_of(ranks, task, normalize_update="step") as trainer, pytest.raises(UserError) as refusal:
        trainer.load_state_dict(state)
    return str(refusal.value)


@pytest.mark.parametrize("asked", [0, 2])
def test_all_ranks_stop_before_the_same_step_and_go_on_in_any_number(server: RankServer, asked: int):
    (uninterrupted,) = server.values(continued, 0, "discrete", None)
    stops = server.values(stopped_in_a_rollout, 3, "discrete", asked)
    (step,) = {step for step, _, _ in stops}
    assert step % N_ENVS == 0
    assert step >= N_ENVS * (N_STEPS + 5)
    assert all(mid_rollout for _, mid_rollout, _ in stops)
    for size in (0, 1, 2, 4):
        assert set(server.values(continued, size, "discrete", stops[0][2])) == {uninterrupted}


@pytest.mark.parametrize("task", ["masked", "memory"])
def test_a_process_that_trained_alone_is_continued_by_ranks(server: RankServer, task: str):
    ((_, mid_rollout, state),) = server.values(stopped_in_a_rollout, 0, task, 0)
    (uninterrupted,) = server.values(continued, 0, task, None)
    assert mid_rollout
    assert server.values(continued, 3, task, state) == [uninterrupted] * 3


def test_the_state_between_two_iterations_is_that_of_one_process(server: RankServer):
    ((step, _, alone),) = server.values(stopped_after_the_first_iteration, 0, "discrete")
    assert step == N_ENVS * N_STEPS
    for of_ranks in server.values(stopped_after_the_first_iteration, 2, "discrete"):
        assert of_ranks[:2] == (step, True)  # before the first step of a rollout that has begun
        assert repr(without_times(of_ranks[2])) == repr(without_times(alone))


def test_a_state_of_the_other_way_to_normalize_is_refused(server: RankServer):
    ((_, _, state),) = server.values(stopped_after_the_first_iteration, 0, "not normalized")
    (refusal,) = server.values(refused, 0, "not normalized", state)
    assert refusal.startswith("The checkpoint was made with normalize_update rollout, but here it is step;")


def without_times(state: dict[str, Any]) -> dict[str, Any]:
    collector = {**state["collector"], "elapsed_s": 0.0}
    return {**state, "collector": collector}
