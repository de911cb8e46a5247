"""The states of workers of both kinds, and a pool of both."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.core.stepping.batch import BatchLayout
from ml_pipeline.models.rl.core.stepping.errors import EnvRaisedError, WorkerDiedError
from ml_pipeline.models.rl.core.stepping.protocol import STEP, Command, ResetOrder
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.models.rl.core.workers.open import divide, open_pool
from ml_pipeline.models.rl.core.workers.pipes import WorkerLink
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.models.rl.core.workers.process import ProcessWorker, TimeLimit, close_all, end_all
from ml_pipeline.models.rl.core.workers.start import WorkerStarter
from ml_pipeline.models.rl.core.workers.worker import CLOSED, IDLE, LOST, PENDING, STARTING, local_worker
from tests.models.rl.core.workers.probes import pass_through

EnvFns = list[Callable[[], gymnasium.Env]]
LENGTH = ("length", (), {})


def layout_of(env_fns: EnvFns, n_workers: int) -> BatchLayout:
    env = CountingEnv()
    return BatchLayout(len(env_fns), env.observation_space, env.action_space, AutoresetMode.SAME_STEP, n_workers)


@pytest.fixture
def starting() -> Iterator[ProcessWorker]:
    env_fns: EnvFns = [CountingEnv] * 2
    (worker,) = WorkerStarter(env_fns, layout_of(env_fns, 1), "forkserver").start({0: range(2)})
    yield worker
    if worker.state is not CLOSED:
        end_all([worker])


def test_a_worker_of_another_process_is_idle_between_replies(starting: ProcessWorker) -> None:
    worker = starting
    assert worker.state is STARTING
    worker.read()
    assert (worker.state, worker.reply.values) == (IDLE, [])
    worker.send(1, Command.CALL, worker.prepare(LENGTH, None))
    assert worker.state is PENDING
    worker.read()
    assert (worker.state, worker.reply.values) == (IDLE, [5, 5])
    close_all([worker], timeout_s=60.0)
    assert worker.state is CLOSED


def test_a_worker_of_this_process_is_idle_between_replies() -> None:
    worker, _ = local_worker([CountingEnv] * 2, AutoresetMode.SAME_STEP)
    assert (worker.state, worker.reply.values) == (IDLE, [])
    worker.send(1, Command.CALL, worker.prepare(LENGTH, None))
    assert worker.state is PENDING
    worker.read()
    assert (worker.state, worker.reply.values) == (IDLE, [5, 5])
    worker.send(2, STEP)
    worker.forget()
    assert worker.state is IDLE
    worker.close()
    assert worker.state is CLOSED


@pytest.mark.parametrize("method", ["note", "send"])
def test_a_worker_is_lost_where_a_command_is_cut_off(
    starting: ProcessWorker, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting.read()
    monkeypatch.setattr(WorkerLink, method, cut_off)
    with pytest.raises(KeyboardInterrupt):
        starting.send(1, Command.CALL, starting.prepare(LENGTH, None))
    assert starting.state is LOST


@pytest.mark.parametrize("method", ["read_note", "receive"])
def test_a_worker_is_lost_where_a_reply_is_cut_off(
    starting: ProcessWorker, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerLink, method, cut_off)
    with pytest.raises(KeyboardInterrupt):
        starting.read()
    assert starting.state is LOST


def cut_off(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_worker_whose_process_ended_says_so_when_it_is_read(starting: ProcessWorker) -> None:
    starting.read()
    starting.process.kill()
    starting.process.join()
    starting.send(1, Command.CALL, starting.prepare(LENGTH, None))
    with pytest.raises(EOFError):
        starting.read()
    assert "killed by SIGKILL while idle" in str(starting.death())


def test_a_worker_is_overdue_once_its_limit_has_passed_and_something_is_pending(starting: ProcessWorker) -> None:
    assert not starting.is_overdue()
    starting.limit = TimeLimit(0.0)
    assert starting.is_overdue()
    assert starting.interval_s(9.0) == 0.0
    starting.read()
    assert not starting.is_overdue()
    starting.limit = None
    assert starting.interval_s(9.0) == 9.0
    assert starting.interval_s(9.0, deadline=TimeLimit(0.0)) == 0.0


# A pool of both kinds


@pytest.fixture
def mixed() -> Iterator[Callable[[EnvFns], WorkerPool]]:
    """Makes pools in which this process steps the first block, and two others the rest."""
    pools: list[WorkerPool] = []

    def make(env_fns: EnvFns) -> WorkerPool:
        division = Division(n_workers=2, steps_here=True)
        starter = WorkerStarter(env_fns, layout_of(env_fns, 3), "forkserver")
        pools.append(open_pool(starter, division, divide(len(env_fns), 1, division)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close(terminate=True)
    assert not multiprocessing.active_children()


def states(pool: WorkerPool) -> list[Any]:
    return [worker.state for worker in pool._workers]


def results(pool: WorkerPool, *command: Any) -> list[Any]:
    pool.post(*command)
    return pool.collect().values


def new_episodes(pool: WorkerPool) -> None:
    results(pool, Command.RESET, None, [ResetOrder(0, wanted=True)] * pool.batch.layout.num_envs)


def test_both_kinds_take_part_in_every_command(mixed: Callable[[EnvFns], WorkerPool]) -> None:
    pool = mixed([CountingEnv] * 5)
    assert [worker.environments for worker in pool._workers] == [range(2), range(2, 4), range(4, 5)]
    assert (len(pool.here), len(pool.processes)) == (1, 2)
    assert states(pool) == [IDLE] * 3
    new_episodes(pool)
    pool.post(Command.CALL, ("_t", (), {}))
    assert states(pool) == [PENDING] * 3
    assert pool.collect().values == [0] * 5
    pids = results(pool, Command.APPLY, (lambda env: os.getpid(), ()), [True] * 5)
    assert pids[:2] == [os.getpid()] * 2
    assert len(set(pids)) == 3
    assert pool.batch.actions is not None
    pool.batch.actions[:] = np.arange(5) % 4
    pool.post(STEP)
    pool.collect()
    assert pool.batch.rewards.tolist() == [1.0, 11.0, 21.0, 31.0, 1.0]
    pool.close()
    assert pool.closed


def test_failures_of_both_kinds_are_mentioned(mixed: Callable[[EnvFns], WorkerPool]) -> None:
    pool = mixed([lambda: FaultyEnv("raise")] * 3)
    new_episodes(pool)
    pool.post(STEP)
    with pytest.raises(EnvRaisedError, match=r"^Environment 0 of 3") as caught:
        pool.collect()
    assert caught.value.__notes__ == [
        "Worker 0 failed as well: environment 1 raised ValueError.",
        "Worker 1 failed as well: environment 2 raised ValueError.",
    ]
    assert states(pool) == [IDLE] * 3


def test_what_was_given_up_is_dropped_by_both_kinds(mixed: Callable[[EnvFns], WorkerPool], tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def count_or_wait(env: Any) -> None:
        if multiprocessing.parent_process() is not None:
            pass_through(gate)
        env.length += 1

    count = (Command.APPLY, (count_or_wait, ()), [True] * 3)
    pool = mixed([CountingEnv] * 3)
    pool.post(*count)
    with pytest.raises(multiprocessing.TimeoutError, match=r"No reply within 0.01 second\(s\); worker 0 is still busy"):
        pool.collect(timeout_s=0.01)
    assert states(pool) == [IDLE, PENDING, PENDING]
    gate.touch()
    pool.drain_replies()
    assert states(pool) == [IDLE] * 3
    pool.post(*count)
    pool.drain_replies()  # nobody has waited: the worker in this process did not begin
    assert results(pool, Command.CALL, LENGTH) == [6, 7, 7]


def test_all_are_closed_where_one_dies(mixed: Callable[[EnvFns], WorkerPool]) -> None:
    pool = mixed([CountingEnv] * 3)
    workers = list(pool._workers)
    pool.post(Command.APPLY, (lambda env: os.kill(os.getpid(), signal.SIGKILL), ()), [False, False, True])
    with pytest.raises(WorkerDiedError, match=r"Worker 1 \(environment 2\) was killed by SIGKILL in apply"):
        pool.collect()
    assert [worker.state for worker in workers] == [CLOSED] * 3
    assert pool.here[0].envs == []
