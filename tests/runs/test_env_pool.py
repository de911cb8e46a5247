"""The limit on environments as its users meet it: leased, given back, killed, refused."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.runs.env_pool import EnvPool
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE, LeaseRefused
from tests.models.rl.core.workers.probes import ROOT, have_ended, wait_until

pytestmark = pytest.mark.timeout(120)
ME = f"process {os.getpid()}"


class FaultyEnv(CountingEnv):
    """Does to its process what environments should not do, as told by `call`."""

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def end(self) -> None:
        os._exit(3)


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


@pytest.fixture
def pool() -> Iterator[EnvPool]:
    with EnvPool(max_concurrent_envs=4) as pool:
        yield pool


@pytest.fixture
def named(pool: EnvPool, monkeypatch: pytest.MonkeyPatch) -> EnvPool:
    """A pool that runs would find by the environment variable."""
    monkeypatch.setenv(ENV_POOL_VARIABLE, pool.address)
    return pool


def trajectory(envs: ParallelEnv) -> list[np.ndarray]:
    observations = [envs.reset(seed=3)[0].copy()]
    for step in range(30):
        observation, rewards, *_ = envs.step(np.arange(envs.num_envs) % 2 ^ step % 2)
        observations += [observation.copy(), rewards.copy()]
    return observations


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leased_environments_give_the_same_bits_and_count_until_they_are_closed(pool, num_workers):
    with ParallelEnv([cartpole] * 4, num_workers=0) as own:
        expected = trajectory(own)
    with pool.lease([cartpole] * 4, num_workers=num_workers) as leased:
        np.testing.assert_equal(trajectory(leased), expected)
        assert pool.state().held == {ME: 4}
    assert pool.state().held == {}


def test_the_variable_names_the_pool_to_every_parallel_env(named):
    with ParallelEnv([FaultyEnv] * 2, num_workers=2) as envs:
        assert named.state().held == {ME: 2}
        assert envs.call("variable", ENV_POOL_VARIABLE) == (None, None)  # what they start does not wait for the pool
    assert named.state().held == {}


def test_environments_that_move_to_other_workers_count_once(pool):
    with pool.lease([cartpole] * 4, num_workers=1, wait_s=0.0) as envs:
        envs.reset(seed=0)
        for n_workers in (2, 0, 1):
            envs.rescale(n_workers)
            assert pool.state().n_envs == 4
    assert pool.state().n_envs == 0


def test_environments_that_fail_give_their_room_back(pool):
    def fails() -> gymnasium.Env:
        raise ValueError("not made")

    with pytest.raises(ValueError, match="not made"):
        pool.lease([CountingEnv, CountingEnv, fails], num_workers=1)
    assert pool.state().n_envs == 0
    envs = pool.lease([FaultyEnv], num_workers=1)
    with pytest.raises(WorkerDiedError):
        envs.call("end")
    assert pool.state().n_envs == 0


def test_more_environments_than_the_limit_are_refused(pool):
    with pytest.raises(LeaseRefused, match=r"5 environments do not fit into a pool of max_concurrent_envs=4"):
        pool.lease([CountingEnv] * 5, num_workers=2)


def test_who_waits_in_vain_reads_who_holds_how_many(pool):
    with (
        pool.lease([CountingEnv] * 3, num_workers=1),
        pytest.raises(LeaseRefused, match=rf"3 are in use.*; {ME} holds 3"),
    ):
        pool.lease([CountingEnv] * 2, num_workers=1, wait_s=0.1)


def test_two_lessees_race_for_the_last_room(pool):
    most: list[int] = []
    failures: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(5):
                with pool.lease([cartpole] * 3, num_workers=3, wait_s=100) as envs:
                    most.append(pool.state().n_envs)
                    envs.reset(seed=0)
                    envs.step([0] * 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(most) == {3}


LESSEE = """
import sys
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

envs = ParallelEnv([CountingEnv] * 4, num_workers=2)
envs.reset(seed=0)
print(*envs.worker_pids, flush=True)
sys.stdin.read()
envs.step([0] * 4)
print("stepped", flush=True)
envs.close()
"""
OWNER = """
import sys
from ml_pipeline.runs.env_pool import EnvPool

pool = EnvPool(max_concurrent_envs=4)
print(pool.address, flush=True)
sys.stdin.read()
"""

Start = Callable[..., "tuple[subprocess.Popen[str], list[str]]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Runs a script in another process; the process, and the words of its first line."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str, address: str = "") -> tuple["subprocess.Popen[str]", list[str]]:
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), ENV_POOL_VARIABLE: address}
        process = subprocess.Popen([sys.executable, "-c", text], text=True, env=environ, **pipes)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().split()

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_lease_of_a_killed_run_is_taken_back(pool, start):
    process, workers = start(LESSEE, pool.address)
    assert pool.state().held == {f"process {process.pid}": 4}
    with pytest.raises(LeaseRefused, match=f"process {process.pid} holds 4"):
        pool.lease([CountingEnv], num_workers=0, wait_s=0.0)
    process.kill()
    with pool.lease([CountingEnv] * 4, num_workers=2, wait_s=60) as envs:
        assert set(envs.worker_pids).isdisjoint(map(int, workers))
    wait_until(lambda: have_ended([int(pid) for pid in workers]))


@pytest.mark.slow
def test_a_run_goes_on_when_the_owner_of_its_pool_is_killed(start, monkeypatch):
    owner, (address,) = start(OWNER)
    run, _ = start(LESSEE, address)
    owner.kill()
    owner.communicate()
    monkeypatch.setenv(ENV_POOL_VARIABLE, address)
    with pytest.warns(RuntimeWarning, match=r"no longer exists\. Workers are started as usual"):
        ParallelEnv([CountingEnv], num_workers=1).close()
    assert run.communicate("go on", timeout=60) == ("stepped\n", "")
    assert Path(address).is_dir()
    EnvPool().close()
    assert not Path(address).exists()  # the next pool tidies up


def test_closing_a_pool_ends_the_limit_and_no_environment():
    pool = EnvPool(max_concurrent_envs=4)
    with pool.lease([CountingEnv], num_workers=1) as envs:
        pool.close()
        pool.close()
        envs.reset(seed=0)
    with pytest.raises(UserError, match="is closed"):
        pool.state()
    assert not Path(pool.address).exists()


def test_without_a_pool_at_the_address_workers_are_started_as_usual(monkeypatch):
    monkeypatch.setenv(ENV_POOL_VARIABLE, "ml-env-pool-of-nobody")
    with pytest.warns(RuntimeWarning, match=r"ml-env-pool-of-nobody no longer exists\. Workers are started as usual\."):
        envs = ParallelEnv([CountingEnv] * 2, num_workers=2)
    with envs:
        envs.reset(seed=0)
        (notice,) = envs.take_notices()
        assert "ml-env-pool-of-nobody no longer exists" in notice
        assert envs.take_notices() == []


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="must be at least 1"):
        EnvPool(max_concurrent_envs=0)
