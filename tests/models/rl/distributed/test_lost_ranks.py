"""A rank that is lost ends the others at once, whatever they are doing, and they say which it was."""

import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.distributed import lost_ranks, rank_group
from ml_pipeline.models.rl.distributed.lost_ranks import FOLLOWED, LostRanks
from ml_pipeline.models.rl.ranks import Member, RankLost, RanksDiffer
from tests.models.rl.distributed.rank_server import Outcome, RankServer
from tests.models.rl.distributed.tasks import (
    N_STEPS,
    TIMESTEPS,
    before_step,
    cart_pole,
    config_of,
    hash_of,
    trainer_of,
)

pytestmark = pytest.mark.long

BAD = 1


class Fragile(gymnasium.Wrapper):
    """CartPole that kills its process in its 20th step, once: then there is the file `note`."""

    def __init__(self, note: Path | None) -> None:
        super().__init__(cart_pole())
        self.note, self.t = note, 0

    def step(self, action):
        self.t += 1
        if self.t == 20 and self.note is not None and not self.note.exists():
            self.note.touch()
            killed()
        return super().step(action)


class Raising(gymnasium.Wrapper):
    """Raises in its fifth step."""

    t = 0

    def step(self, action):
        self.t += 1
        if self.t == 5:
            raise KeyError("no such price")
        return super().step(action)


def killed(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failing_at(ranks: Any, where: str, bad: int) -> None:
    """Trains; this rank is killed in its second iteration."""
    with trainer_of(ranks, "discrete") as trainer:
        if ranks.rank == bad:
            if where == "rollout":
                before_step(trainer, N_STEPS + 3, killed)
            elif where == "exchange":
                before_step(trainer, 2 * N_STEPS, lambda: setattr(rank_group, "pack", lambda part: killed()))
            elif where == "update":
                before_step(trainer, 2 * N_STEPS, lambda: setattr(trainer, "_learn", lambda progress: killed()))
            elif where == "between the parts of an exchange":
                before_step(trainer, 2 * N_STEPS, lambda: setattr(torch, "empty", lambda *_, **__: killed()))
        else:
            # The others would wait for long if they had to come to the end of the rollout to notice.
            before_step(trainer, N_STEPS + 4, lambda: wait_for_loss(ranks) if where == "rollout" else None)
        trainer.train(progress=False)


def wait_for_loss(ranks: Any) -> None:
    while not ranks.lost:
        time.sleep(0.001)


def hanging(ranks: Any) -> None:
    """Trains; rank BAD does not come to the second exchange, and once the others have, their time is over."""

    def end_the_time_once_the_others_wait() -> None:
        n_before = ranks.lost._n_exchanges
        others = [rank for rank in range(ranks.size) if rank != BAD]
        while any(ranks.lost._n_arrived(rank) <= n_before for rank in others):
            time.sleep(0.01)
        ranks.timeout_s = 0.0

    with trainer_of(ranks, "discrete") as trainer:
        if ranks.rank == BAD:
            before_step(trainer, 2 * N_STEPS, lambda: wait_for_loss(ranks))
        else:
            watch = threading.Thread(target=end_the_time_once_the_others_wait, daemon=True)
            before_step(trainer, 2 * N_STEPS, watch.start)
        trainer.train(progress=False)


def noticing_in_an_update(ranks: Any) -> int:
    """Trains; rank BAD is killed in its second update. In how many minibatches the others were that knew of it."""
    n_begun = 0

    def wait_in_each_minibatch() -> None:
        steps = trainer._update._steps
        gradients = steps._gradients

        def waiting(minibatch: Any, weights: Any) -> Any:
            nonlocal n_begun
            n_begun += 1
            wait_for_loss(ranks)
            return gradients(minibatch, weights)

        steps._gradients = killed if ranks.rank == BAD else waiting

    with trainer_of(ranks, "memory in torch") as trainer:  # steps that torch takes look between minibatches
        before_step(trainer, 2 * N_STEPS, wait_in_each_minibatch)
        with pytest.raises(RankLost, match=f"rank {BAD} "):
            trainer.train(progress=False)
    return n_begun


def raising(ranks: Any) -> None:
    with trainer_of(ranks, "discrete") as trainer:
        if ranks.rank == BAD:
            before_step(trainer, 5, lambda: {}["no such key"])
        trainer.train(progress=False)


def stepping_a_raising_environment(ranks: Any) -> None:
    env_fns = [cart_pole] * 12
    env_fns[8] = lambda: Raising(cart_pole())  # the third of rank 1
    with PPOTrainer(env_fns, config_of("discrete"), total_timesteps=TIMESTEPS, ranks=ranks) as trainer:
        try:
            trainer.train(progress=False)
        except KeyError as error:
            raise RuntimeError(str(error)) from None  # that one cannot be pickled


def losing_a_worker(ranks: Any, note: Path) -> tuple[str, list[int]]:
    """The hash in the end, and how many workers had been replaced after each iteration."""
    n_restarts: list[int] = []
    env_fns = [functools.partial(Fragile, note if ranks.rank == BAD else None)] * 6
    with (
        ParallelEnv(env_fns, num_workers=1, on_worker_failure="restart", copy=False) as envs,
        PPOTrainer(envs, config_of("discrete"), total_timesteps=TIMESTEPS, ranks=ranks) as trainer,
    ):
        trainer.train(
            after_iteration=lambda _, statistics: n_restarts.append(statistics.n_worker_restarts), progress=False
        )
        return hash_of(trainer), n_restarts


def with_other_weights(ranks: Any) -> None:
    with trainer_of(ranks, "discrete") as trainer:
        if ranks.rank == BAD:

            def damage() -> None:
                with torch.no_grad():
                    next(trainer.policy.network.parameters())[0, 0] += 1e-7

            before_step(trainer, N_STEPS, damage)
        trainer.train(progress=False)


def messages(outcomes: list[Outcome], kind: type[Exception], bad: int = BAD) -> list[str]:
    """Of the other ranks."""
    errors = [outcome.error for rank, outcome in enumerate(outcomes) if rank != bad]
    assert [type(error) for error in errors] == [kind] * len(errors)
    return [str(error) for error in errors]


@pytest.mark.parametrize("bad", [0, 1])  # rank 0 holds the store, and passes messages on
@pytest.mark.parametrize("where", ["rollout", "exchange", "update", "between the parts of an exchange"])
def test_a_rank_that_is_killed_is_named_by_all_others(server: RankServer, where: str, bad: int):
    outcomes = server.run(failing_at, 3, where, bad)
    assert outcomes[bad].status == -signal.SIGKILL
    for message in messages(outcomes, RankLost, bad):
        assert f"rank {bad} (" in message
        assert "its process ended" in message
        assert "start all ranks again from the last checkpoint" in message


def test_a_rank_that_is_killed_in_an_update_ends_those_of_the_others(server: RankServer):
    outcomes = server.run(noticing_in_an_update, 3)
    assert [outcome.value for outcome in outcomes] == [1, None, 1]


def test_a_rank_that_does_not_come_is_named_once_the_time_is_over(server: RankServer):
    outcomes = server.run(hanging, 3)
    assert isinstance(outcomes[BAD].error, RankLost)  # the others told it that they had ended
    for message in messages(outcomes, RankLost):
        assert f"rank {BAD} (" in message
        assert "did not come within 0 s" in message


def test_the_others_are_told_what_a_rank_raised(server: RankServer):
    outcomes = server.run(raising, 2)
    assert isinstance(outcomes[BAD].error, KeyError)
    (message,) = messages(outcomes, RankLost)
    assert "it raised KeyError: 'no such key'" in message


def test_an_environment_that_raises_is_named_by_its_number_among_all(server: RankServer):
    outcomes = server.run(stepping_a_raising_environment, 2)
    error = outcomes[BAD].error
    assert isinstance(error, RuntimeError)
    assert str(error).startswith("Environment 8 of 12 (seed 8) raised KeyError in step 5 ")
    (message,) = messages(outcomes, RankLost)
    assert "it raised" in message


def test_a_worker_that_is_replaced_is_counted_by_all_and_training_goes_on(server: RankServer, tmp_path: Path):
    outcomes = server.values(losing_a_worker, 2, tmp_path / "killed")
    assert (tmp_path / "killed").exists()
    assert outcomes == [(outcomes[0][0], [0, 1, 1])] * 2


def test_ranks_whose_weights_differ_are_named(server: RankServer):
    outcomes = server.run(with_other_weights, 3)
    assert isinstance(outcomes[BAD].error, RanksDiffer)
    for message in messages(outcomes, RanksDiffer):
        assert message.startswith(f"The weights or random numbers of rank {BAD} (")
        assert "differ from those of rank 0" in message


MEMBERS = [Member("a", 10), Member("b", 11), Member("c", 12)]
TIMEOUT_S = 30.0


class Store(dict):
    """What is asked of torch's store."""

    set = dict.__setitem__

    def check(self, keys):
        return all(key in self for key in keys)


class GoneStore(Store):
    def check(self, keys):
        raise RuntimeError("Connection reset by peer")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(lost_ranks, "_NOTICE_S", 0.0)  # the channel tells nothing in these tests
    return Store()


def known_by_first(store):
    return LostRanks(store, 0, MEMBERS)


def told(of_first, waited_s):
    broken = RuntimeError("Broken pipe\nmore of it")
    return str(of_first.error("the rollouts of all", broken, waited_s=waited_s, timeout_s=TIMEOUT_S))


def test_a_rank_that_has_not_come_when_the_time_is_over_was_too_late(store):
    of_first, of_second = (LostRanks(store, rank, MEMBERS) for rank in (0, 1))
    of_first.arrive()
    of_second.arrive()
    assert told(of_first, TIMEOUT_S).startswith(
        "Rank 0 of 3 waited for the rollouts of all, but rank 2 (c, process 12) did not come within 30 s (Broken pipe);"
    )


def test_a_rank_that_has_not_come_when_a_connection_breaks_is_not_called_too_late(store):
    of_first = known_by_first(store)
    of_first.arrive()
    assert "but a connection broke before rank 1 (b, process 11) and rank 2 (c, process 12) came (" in told(of_first, 1)


def test_a_connection_that_breaks_when_all_have_come_is_told_as_that(store):
    for rank in range(3):
        LostRanks(store, rank, MEMBERS).arrive()
    of_first = known_by_first(store)
    of_first._n_exchanges = 1
    assert "but the connection to a rank broke (Broken pipe)" in told(of_first, 1)
    others = "one of rank 1 (b, process 11) and rank 2 (c, process 12)"
    assert f"but {others} did not answer within 30 s (Broken pipe)" in told(of_first, TIMEOUT_S)


def test_the_end_of_the_stores_process_is_told_as_that(monkeypatch):
    monkeypatch.setattr(lost_ranks, "_NOTICE_S", 0.0)
    assert "but the process that holds the group's store is gone (" in told(known_by_first(GoneStore()), 1)


def test_the_first_to_be_lost_is_named_and_not_those_that_followed(store):
    of_first = known_by_first(store)
    assert not of_first
    of_first.note(1, {"lost": 1, "why": FOLLOWED})
    of_first.note(2, {"lost": 2, "why": "its process ended"})
    of_first.note(0, {"lost": 0, "why": "its own end"})
    of_first.note(1, {"taken": 3})
    assert of_first
    with pytest.raises(RankLost, match=r"^rank 2 \(c, process 12\) is gone: its process ended; start all ranks again"):
        of_first.check()
    assert "rank 2 (c, process 12) is gone: its process ended (Broken pipe)" in told(of_first, 0)


def test_neither_the_place_in_torchs_source_nor_gloos_advice_is_told(store):
    of_first = known_by_first(store)
    gloo = (
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1453: "
        "Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. "
        "Check the logs of the remote worker before reporting an error."
    )
    error = of_first.error("the rollouts of all", RuntimeError(gloo), waited_s=1.0, timeout_s=TIMEOUT_S)
    assert "(Read error [127.0.0.1]:1453: Connection reset by peer); start all ranks again" in str(error)
