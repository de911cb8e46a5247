"""What there is for the runs of a service."""

import math
from contextlib import closing

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.budget import Waiting, need_of, to_start
from ml_pipeline.runs import env_pool
from ml_pipeline.runs.env_pool import EnvPool
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE, env_pool_address
from ml_pipeline.service import resources
from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.loop import EventLog
from ml_pipeline.service.resources import Resources, ServiceLimits
from tests.models.rl.core.workers.probes import wait_until


class PoolOf:
    """In place of a pool."""

    made = ()

    def __init__(self, **settings):
        type(self).made = settings
        self.address = "the-pool"

    def close(self):
        type(self).made = "closed"


@pytest.fixture
def made(monkeypatch, tmp_path):
    monkeypatch.setattr(env_pool, "EnvPool", PoolOf)
    return lambda **limits: Resources(ServiceLimits(**limits), EventLog(tmp_path / "service.log", None))


def test_limits_hold_and_what_is_not_limited_is_measured(made, monkeypatch):
    monkeypatch.setattr(resources, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(resources, "free_memory_bytes", lambda: 3_000_000_000)
    assert made().total(500.0) == (math.inf, 2.0, 3500.0, math.inf)
    assert made(max_runs=3, cores=4, memory_mb=1000, max_concurrent_envs=8).total(0.0) == (3, 4, 1000.0, 8)
    monkeypatch.setattr(resources, "usable_cores", lambda: 0.5)
    assert made().cores == 1.0  # else nothing would ever start


def test_two_of_four_runs_start_on_two_cores(made, monkeypatch):
    monkeypatch.setattr(resources, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(resources, "free_memory_bytes", lambda: 8_000_000_000)
    settings = {"n_envs": 8, "n_workers": "auto", "vec_env": "parallel"}
    queued = [Waiting(str(i), (0, i), need_of(settings)) for i in range(4)]
    assert to_start(queued, [], made().total(0.0)) == ["0", "1"]


def test_the_pool_has_room_for_as_many_environments_as_the_service_allows(made):
    with closing(made(max_concurrent_envs=12)) as found:
        assert PoolOf.made == {"max_concurrent_envs": 12}
        assert found.environment() == {ENV_POOL_VARIABLE: "the-pool"}
    assert PoolOf.made == "closed"


def test_without_a_pool_the_log_tells_and_runs_use_no_other_one(made, monkeypatch, tmp_path):
    def refuses(**_):
        raise UserError("The disk is full.")

    monkeypatch.setattr(env_pool, "EnvPool", refuses)
    monkeypatch.setenv(ENV_POOL_VARIABLE, "that-of-another-service")
    with closing(made()) as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
    assert env_pool_address() is None
    assert "Runs share no limit on environments: The disk is full." in (tmp_path / "service.log").read_text()


@pytest.mark.slow
def test_a_run_counts_its_environments_in_the_pool_of_its_service(tmp_path, monkeypatch):
    pools = []

    def kept(**settings):
        pools.append(EnvPool(**settings))
        return pools[0]

    monkeypatch.setattr(env_pool, "EnvPool", kept)
    service = AgentTrainingService(tmp_path / "root")
    try:
        run = service.submit({"env_id": "CartPole-v1", "n_envs": 4, "n_workers": 2, "total_timesteps": 10**8})
        held = wait_until(lambda: pools[0].state().held)
        assert held == {f"process {service.get(run).process.pid}": 4}
    finally:
        service.close(stop_runs=True)
