"""Processes of runs wait for their go, outlive whoever started them, and their end is heard of."""

import os
import signal
import sys
import threading
from contextlib import closing

import pytest

from ml_pipeline.runs.folder_claim import record_queued
from ml_pipeline.runs.state import read_state
from ml_pipeline.runtime.process_identity import identity_of, is_alive
from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.processes import ForkedProcesses, SpawnedProcesses
from ml_pipeline.service.resources import ServiceLimits
from ml_pipeline.service.run_process import RunOrder
from tests.models.rl.core.workers.probes import wait_until
from tests.small_runs import trained, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks from a warm process"),
]
EVENT = threading.Event()
SMALL = {
    **{"env_id": "CartPole-v1", "n_envs": 2, "vec_env": "serial", "iterations": 4, "eval_episodes": 1},
    **{"n_steps": 32, "minibatch_size": 64, "n_epochs": 2, "hidden_sizes": [8]},
}


@pytest.fixture(scope="module", params=[ForkedProcesses, lambda *_: SpawnedProcesses()], ids=["forked", "spawned"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def processes(kind, tmp_path_factory):
    with closing(kind(tmp_path_factory.mktemp("processes") / "log", EVENT.set)) as made:
        wait_until(made.is_ready)
        yield made


def order(folder, *arguments):
    record_queued(folder)
    arguments = arguments or ("--env-id", "Nowhere-v1", "--checkpoint-dir", str(folder))
    return RunOrder(folder=str(folder), folder_of_work=str(folder), arguments=arguments, environment={})


def ended(processes, pid):
    codes = {}

    def look():
        EVENT.wait(0.05)
        EVENT.clear()
        codes.update(processes.ended())
        return pid in codes

    wait_until(look)
    return codes[pid]


def test_a_process_touches_nothing_until_it_is_told_to_go(processes, tmp_path):
    folder = tmp_path / "run"
    pid = processes.start(order(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    processes.drop(pid)
    assert ended(processes, pid) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert read_state(folder).status == "queued"


def test_a_process_that_waits_ends_with_whoever_started_it(kind, tmp_path):
    with closing(kind(tmp_path / "log", EVENT.set)) as processes:
        wait_until(processes.is_ready)
        process = identity_of(processes.start(order(tmp_path / "run")))
    wait_until(lambda: is_alive(process) is False)
    assert read_state(tmp_path / "run").status == "queued"


def test_a_process_that_was_told_to_go_begins_though_whoever_said_so_ends_at_once(kind, tmp_path):
    with closing(kind(tmp_path / "log", EVENT.set)) as processes:
        wait_until(processes.is_ready)
        processes.go(processes.start(order(tmp_path / "run")))
    wait_until(lambda: read_state(tmp_path / "run").status == "failed")  # as there is no such environment


def test_a_refused_run_says_why_in_its_folder(processes, tmp_path):
    folder = tmp_path / "run"
    pid = processes.start(order(folder))
    processes.go(pid)
    assert ended(processes, pid) == 2
    found = read_state(folder)
    assert found.status == "failed"
    assert "Nowhere-v1" in found.reason
    assert "Nowhere-v1" in (folder / "output.log").read_text()


def test_a_killed_run_is_told_by_its_signal(processes, tmp_path):
    pid = processes.start(order(tmp_path / "run"))
    os.kill(pid, signal.SIGKILL)
    assert ended(processes, pid) == -signal.SIGKILL
    processes.go(pid)  # too late, and harmless


def test_a_host_that_was_killed_is_started_again(tmp_path):
    with closing(ForkedProcesses(tmp_path / "log", EVENT.set)) as processes:
        wait_until(processes.is_ready)
        processes._host.kill()
        processes._host.wait(60)
        wait_until(processes.is_ready)
        pid = processes.start(order(tmp_path / "run"))
        processes.drop(pid)
        assert ended(processes, pid) == 0


@pytest.mark.long
def test_runs_side_by_side_have_the_bits_that_each_has_alone(tmp_path):
    limits = ServiceLimits(cores=4, max_runs=4)
    with AgentTrainingService(tmp_path / "root", limits=limits) as service:
        runs = [service.submit({**SMALL, "seed": seed}) for seed in range(4)]
        assert [run.status for run in service.wait(timeout_s=100)] == ["finished"] * 4
    for seed, run in enumerate(runs):
        trained(tmp_path / f"alone{seed}", seed=seed)
        assert (weights(tmp_path / "root" / run) == weights(tmp_path / f"alone{seed}")).all()


@pytest.mark.long
def test_a_run_stopped_and_resumed_by_the_service_has_the_bits_of_one_that_was_not(tmp_path):
    with AgentTrainingService(tmp_path / "root") as service:
        run = service.submit({**SMALL, "iterations": 200})
        wait_until((service.root / run / "latest.pt").exists)
        service.stop(run)
        assert [each.status for each in service.wait(timeout_s=60)] == ["stopped"]
        service.resume(run)
        assert [each.status for each in service.wait(timeout_s=60)] == ["finished"]
    trained(tmp_path / "alone", iterations=200)
    assert (weights(tmp_path / "root" / run) == weights(tmp_path / "alone")).all()
