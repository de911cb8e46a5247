"""The service runs what it is handed: in order, within limits, through faults, and through its own end."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs import folder_claim, requests, state
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.process_identity import is_alive
from ml_pipeline.service import run_supervisor
from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.store import QueuedRun, ServiceRuns, Store, StoreUnavailable
from ml_pipeline.service.submission import flat_settings, submitted_config
from tests.models.rl.core.workers.probes import wait_until
from tests.service.brief_run import DEAF, DIES_AT_FIRST, LONG, REFUSED

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM and SIGKILL")
TICK_S = 0.25
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
input()
"""


def brief(seed=0, **settings):
    return {"env_id": "CartPole-v1", "iterations": 1, "seed": seed, **settings}


def begun(service, run):
    """Waits until a run has begun; returns its process."""
    wait_until((service.root / run / "latest.pt").exists)
    return wait_until(lambda: service.get(run).process)


# Submitting


def test_a_submitted_run_waits_in_its_folder_and_then_finishes(serve, said):
    service = serve(max_runs=1)
    first, second = service.submit(brief(LONG)), service.submit(brief())
    begun(service, first)
    waiting = read_state(service.root / second)
    assert (waiting.status, service.get(second).status) == ("queued", "queued")
    assert yaml.safe_load((service.root / second / "config.yaml").read_text())["env_id"] == "CartPole-v1"
    service.stop(first)
    assert [run.status for run in service.wait(timeout_s=60)] == ["stopped", "finished"]
    assert read_state(service.root / second).status == "finished"
    assert said[0].startswith(f"{first} starts, as process ")
    assert f"{second} finished." in said


def test_a_run_tells_why_it_waits_and_one_that_needs_more_than_there_is_starts_alone(serve, said):
    service = serve(cores=2)
    large = {"n_envs": 4, "n_workers": 4}
    first, second = service.submit(brief(LONG)), service.submit(brief(**large))
    begun(service, first)
    reason = wait_until(lambda: read_state(service.root / second).reason)
    assert reason == f"Waits for 2 of 2 cores; {first} uses 1."
    assert f"{second} waits for 2 of 2 cores; {first} uses 1." in said
    service.stop(first)
    assert [run.status for run in service.wait(timeout_s=60)] == ["stopped", "finished"]
    assert read_state(service.root / second).reason is None


def test_settings_come_by_name_in_a_file_or_as_a_config(serve, tmp_path):
    service = serve()
    file = tmp_path / "settings.yaml"
    file.write_text("env_id: CartPole-v1\nn_envs: 2\n")
    config = TrainConfig(run=RunConfig(env_id="CartPole-v1", n_envs=3), ppo=PPOConfig(n_steps=128))
    runs = [service.submit(file), service.submit(str(file)), service.submit(config), service.submit(brief(n_envs=4))]
    assert [service.get(run).settings["n_envs"] for run in runs] == [2, 2, 3, 4]
    assert service.get(runs[2]).settings["n_steps"] == 128
    assert len({*runs}) == 4


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_env": 8}, r'unknown setting "n_env".* Did you mean "n_envs"\?'),
        ({"n_envs": "many"}, "n_envs must be a whole number"),
        ({"env_id": None, "data": "nowhere.csv"}, r"There is no market data at .*nowhere\.csv"),
        ({"env_id": None, "data": "empty"}, r"The folder .*empty holds no market data"),
        ({"n_envs": 9}, r"n_envs is 9, but this service runs at most 8 environments at once.*--max-concurrent-envs 9"),
        ({"n_envs_schedule": {100: 9}}, "largest number of n_envs_schedule is 9, but this service runs at most 8"),
        ({"checkpoint_dir": "here"}, "the service makes a folder for each run"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_queued(settings, sentence, serve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    service = serve(max_concurrent_envs=8)
    with pytest.raises(UserError, match=sentence):
        service.submit({**brief(), **settings})
    assert service.list() == []
    assert [path.name for path in service.root.iterdir()] == [".service"]


@pytest.mark.parametrize("id", ["../out", ".hidden", "a/b", "", " ", "x" * 200])
def test_a_name_that_is_no_folder_name_is_refused(id, serve):
    service = serve()
    if id:
        with pytest.raises(UserError, match="The id of a run must consist of letters"):
            service.submit(brief(), run_id=id)
    with pytest.raises(UserError, match="There is no run"):
        service.stop(id)


def test_a_run_submitted_again_under_its_name_changes_nothing(serve):
    service = serve()
    assert [service.submit(brief(), run_id="mine") for _ in range(3)] == ["mine"] * 3
    assert [run.id for run in service.wait(timeout_s=60)] == ["mine"]
    assert service.submit(brief(), run_id="mine") == "mine"
    assert (service.root / "mine" / "begun.txt").read_text().count("\n") == 1
    with pytest.raises(UserError, match="mine was already submitted with another seed"):
        service.submit(brief(seed=5), run_id="mine")


def test_a_folder_that_is_there_is_not_taken_for_a_new_run(serve):
    service = serve()
    (service.root / "mine").mkdir()
    with pytest.raises(UserError, match="already exists; give the run another id"):
        service.submit(brief(), run_id="mine")


def test_a_higher_priority_starts_first(serve, said):
    service = serve(max_runs=1)
    first = service.submit(brief(LONG))
    begun(service, first)
    low, high = service.submit(brief()), service.submit(brief(), priority=1)
    service.stop(first)
    service.wait(timeout_s=60)
    assert [line.split()[0] for line in said if "starts" in line] == [first, high, low]


def test_no_more_environments_than_the_limit_are_out_at_once(serve):
    service = serve(max_concurrent_envs=8)
    a, b, c = (service.submit(brief(LONG, n_envs=n)) for n in (5, 4, 3))
    begun(service, a)
    begun(service, c)  # overtakes into what b leaves over: 4 and 3 fit
    assert service.get(b).status == "queued"
    service.stop(a)
    begun(service, b)


@pytest.mark.parametrize("priority", ["high", None, 0.5, float("nan"), True, 2**70, -(2**70)])
@pytest.mark.parametrize("name", ["priority", "restarts"])
def test_an_order_that_is_no_whole_number_within_its_range_is_refused(name, priority, serve):
    service = serve()
    with pytest.raises(UserError, match=f"^{name} must be "):
        service.submit(brief(), **{name: priority})
    assert service.list() == []


@pytest.mark.parametrize(
    "call",
    [
        *(lambda service, settings=settings: service.submit(settings) for settings in (None, 5, [], "", "a\0b")),
        *(lambda service, id=id: service.submit(brief(), run_id=id) for id in (5, b"x", 0, [])),
        *(lambda service, at=at: service.submit(brief(), folder_of_work=at) for at in (5, "a\0b", "", b"x")),
        *(
            lambda service, do=do, run=run: getattr(service, do)(run)
            for do in ("get", "stop", "resume", "scale")
            for run in (5, None, [])
        ),
        lambda service: service.wait(5),
        lambda service: service.wait([5]),
        *(lambda service, s=s: service.wait(timeout_s=s) for s in (float("nan"), -1, "long")),
    ],
)
def test_what_is_of_a_wrong_kind_is_refused_in_a_sentence(call, serve):
    service = serve()
    with pytest.raises(UserError, match="but got "):
        call(service)
    assert service.list() == []


def test_one_waits_for_ever_without_a_limit_that_the_system_has_not(serve):
    service = serve()
    service.submit(brief())
    assert [run.status for run in service.wait(timeout_s=1e300)] == ["finished"]


def test_a_root_that_is_deleted_stays_so_and_is_told(serve, said):
    service = serve(max_runs=1)
    first, second = service.submit(brief(LONG)), service.submit(brief())
    process = begun(service, first)
    os.kill(process.pid, signal.SIGSTOP)  # it would write into its folder
    try:
        shutil.rmtree(service.root)
        wait_until(lambda: any("was deleted, moved or replaced while the service used it" in line for line in said))
        with pytest.raises(UserError, match="was deleted, moved or replaced"):
            service.submit(brief())
    finally:
        os.kill(process.pid, signal.SIGKILL)
    service.close(stop_runs=True)
    assert not any(line.startswith(f"{second} starts") for line in said)
    assert not service.root.exists()


def test_a_run_that_cannot_be_read_does_not_stop_the_others(serve, said):
    service = serve()
    service.close()
    with closing(Store(service.root, since="")) as store:
        for id in ("bad", "good"):
            store.add(
                QueuedRun(
                    id=id, settings=flat_settings(submitted_config(brief())), changes={}, folder_of_work=os.getcwd()
                )
            )
        store._connection.execute("UPDATE runs SET priority = 'high' WHERE id = 'bad'")
    again = serve()
    assert [(run.id, run.status) for run in again.wait(timeout_s=60)] == [("good", "finished")], said
    assert any("entry of run bad is unusable (priority is 'high', and not a whole number)" in line for line in said)


def test_runs_whose_queue_was_deleted_are_named_and_can_be_queued_again(serve, said):
    service = serve(max_runs=1)
    first, second = service.submit(brief(LONG)), service.submit(brief(), run_id="second")
    begun(service, first)
    service.stop(first)
    service.start_no_more()
    service.wait([first], timeout_s=60)
    service.close()
    for file in (service.root / ".service").glob("queue.sqlite*"):
        file.unlink()
    with closing(Store(service.root, since="")):
        pass
    folder_claim.record_queued(service.root / second)  # it may have begun before the service was told to start no more
    again = serve()
    assert any("1 run in" in line and "the queue was deleted: second." in line for line in said)
    again.resume(second)
    assert [run.status for run in again.wait(timeout_s=60)] == ["finished"]


def test_a_service_that_starts_no_more_leaves_what_waits(serve):
    service = serve()
    service.start_no_more()
    run = service.submit(brief())
    assert service.wait(timeout_s=1)[0].status == "queued"
    assert service.get(run).starts == 0


# Ending


def test_a_killed_run_is_told_with_its_last_words(serve, said):
    service = serve()
    run = service.submit(brief(DIES_AT_FIRST))
    (ended,) = service.wait(timeout_s=60)
    assert ended.status == "failed"
    assert re.fullmatch(
        r"The process ended \(killed by SIGKILL at \d\d:\d\d:\d\d UTC\); its last output:\nout of luck", ended.reason
    )
    found = read_state(service.root / run)
    assert (found.status, found.reason) == ("failed", ended.reason)
    assert f"{run} failed: {ended.reason}" in said


def test_a_killed_run_is_started_again_from_its_checkpoint_if_that_was_asked_for(serve, said):
    service = serve()
    run = service.submit(brief(DIES_AT_FIRST), restarts=2)
    begun(service, run)
    wait_until(lambda: len((service.root / run / "begun.txt").read_text().splitlines()) == 2)
    service.stop(run)
    (ended,) = service.wait(timeout_s=60)
    first, second = (service.root / run / "begun.txt").read_text().splitlines()
    assert "--config" in first
    assert second == f"--resume {service.root / run}"
    assert (ended.status, ended.restarts_left) == ("stopped", 1)
    assert any("It restarts from its checkpoint; 1 restart left." in line for line in said)


def test_a_run_that_is_refused_is_not_started_again(serve):
    service = serve()
    run = service.submit(brief(REFUSED), restarts=3)
    (ended,) = service.wait(timeout_s=60)
    assert (ended.status, ended.starts) == ("failed", 1)
    assert "there is no such thing" in ended.reason
    assert "there is no such thing" in read_state(service.root / run).reason


def test_a_working_directory_that_is_gone_is_told(serve, tmp_path):
    service = serve()
    (tmp_path / "gone").mkdir()
    service.submit(brief(), folder_of_work=tmp_path / "gone")
    service.close()
    (tmp_path / "gone").rmdir()
    # The first may have begun before; one that waited did not.
    with closing(Store(service.root, since="")) as store:
        for run in store.runs():
            store.change(run.id, status="queued", process=None)
    again = serve()
    (ended,) = again.wait(timeout_s=60)
    assert ended.status == "failed"
    assert "The folder it was submitted in is gone" in ended.reason


# Stopping, resuming, scaling


def test_a_queued_run_is_taken_out_of_the_queue(serve):
    service = serve(max_runs=1)
    first, second = service.submit(brief(LONG)), service.submit(brief())
    service.stop(second)
    assert service.get(second).status == read_state(service.root / second).status == "stopped"
    service.stop(first)
    service.wait(timeout_s=60)
    assert not (service.root / second / "begun.txt").exists()
    service.stop(second)  # which has ended: nothing happens


def test_a_run_that_does_not_stop_is_killed_after_a_grace(serve, said):
    service = serve(stop_grace_s=0.1)
    run = service.submit(brief(DEAF))
    process = begun(service, run)
    service.stop(run)
    (ended,) = service.wait(timeout_s=60)
    assert ended.status == read_state(service.root / run).status == "stopped"
    assert "was killed" in ended.reason
    assert is_alive(process) is False
    assert f"{run} did not stop within 0.1 s and is killed." in said


def test_a_stopped_run_goes_on_behind_the_others(serve):
    service = serve()
    run = service.submit(brief(LONG))
    begun(service, run)
    service.stop(run)
    service.wait(timeout_s=60)
    service.resume(run, n_workers=0)
    wait_until(lambda: (service.root / run / "begun.txt").read_text().count("\n") == 2)
    assert (service.root / run / "begun.txt").read_text().splitlines()[1].endswith(f"{run} --n-workers 0")
    with pytest.raises(UserError, match=f"{run} is already running"):
        service.resume(run)


def test_a_finished_run_goes_on_only_with_more_to_do(serve):
    service = serve()
    run = service.submit(brief())
    service.wait(timeout_s=60)
    with pytest.raises(UserError, match="has finished; pass a larger --total-timesteps"):
        service.resume(run)
    with pytest.raises(UserError, match="total_timesteps is 1; pass more"):
        service.resume(run, total_timesteps=1)
    with pytest.raises(UserError, match='unknown setting "total_timestep"'):
        service.resume(run, total_timestep=5)
    service.resume(run, total_timesteps=4096)
    (ended,) = service.wait(timeout_s=60)
    assert ended.status == "finished"
    assert (service.root / run / "begun.txt").read_text().splitlines()[1].endswith("--total-timesteps 4096")


def test_a_run_of_the_command_line_can_be_resumed(serve):
    service = serve()
    folder = service.root / "by-hand"
    claim = folder_claim.FolderClaim(folder)
    (folder / "config.yaml").write_text("env_id: CartPole-v1\nseed: 7\n")
    (folder / "latest.pt").touch()
    with pytest.raises(UserError, match="is being written by process"):
        service.resume("by-hand")
    claim.end("stopped", None, global_step=1, iterations=1, best_score=None)
    claim.release()
    service.resume("by-hand")
    assert [run.status for run in service.wait(["by-hand"], timeout_s=60)] == ["finished"]
    for name in ("nothing", "../root/by-hand", ".service"):
        with pytest.raises(UserError, match="There is no run"):
            service.resume(name)


def test_a_run_is_asked_to_scale_by_its_request_file(serve):
    service = serve(max_concurrent_envs=4)
    run = service.submit(brief(LONG, n_envs=2))
    begun(service, run)
    service.scale(run, n_workers=2)
    assert json.loads((service.root / run / "request.json").read_text()) == {"n_workers": 2}
    service.scale(run, n_envs=4)
    assert requests.Requests(service.root / run).take() == requests.Request(n_workers=2, n_envs=4)
    with pytest.raises(UserError, match="n_envs is 5, but this service runs at most 4"):
        service.scale(run, n_envs=5)
    assert (service.get(run).settings["n_envs"], service.get(run).settings["n_workers"]) == (2, "auto")
    service.stop(run)
    service.wait(timeout_s=60)
    with pytest.raises(UserError, match=r"it was stopped. Only a run in progress can be scaled"):
        service.scale(run, n_envs=1)


@pytest.mark.parametrize("n_workers", ["auto", "dynamic", 1])
def test_a_number_that_cannot_be_is_refused_however_the_workers_are_chosen(n_workers, serve):
    service = serve()
    run = service.submit(brief(LONG, n_envs=2, n_workers=n_workers))
    begun(service, run)
    for asked in ({"n_envs": 65_537}, {"n_workers": 65_537}, {"n_envs": 10**9}, {"n_workers": 2**70}, {"n_envs": 2.5}):
        with pytest.raises(UserError, match=r"n_(envs|workers) must be "):
            service.scale(run, **asked)
    assert not (service.root / run / "request.json").exists()
    assert service.get(run).settings["n_envs"] == 2


def test_what_a_run_was_asked_for_counts_once_it_has_done_it(serve):
    service = serve()
    run = service.submit(brief(LONG, n_envs=2))
    begun(service, run)
    folder = service.root / run

    def iterate(*iterations):
        """Let the run take what it is asked for, and make iterations with these numbers of environments and workers."""
        requests.Requests(folder).take()
        for n_envs, n_workers in iterations:
            time.sleep(3 * TICK_S)  # the service looks in between, or sees both at once: either is right
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"time/n_envs": n_envs, "workers/count": n_workers}) + "\n")

    def now():
        settings = service.get(run).settings
        return settings["n_envs"], settings["n_workers"]

    service.scale(run, n_envs=4)
    iterate((4, 0), (4, 0))
    wait_until(lambda: now() == (4, "auto"))
    service.scale(run, n_workers=4)  # refused by the run, and done later
    iterate((4, 0), (4, 0), (4, 0), (4, 0), (4, 0))
    wait_until(lambda: not service._scaling.pending(run))
    assert now() == (4, "auto")
    service.scale(run, n_envs=8, n_workers=2)
    iterate((8, 0), (8, 2))
    wait_until(lambda: now() == (8, 2))


# The service ends, and another begins


def test_runs_go_on_without_the_service_and_the_next_one_watches_them(serve, said):
    first = serve()
    run = first.submit(brief(LONG))
    process = begun(first, run)
    first.close()
    first.close()
    assert is_alive(process)
    with pytest.raises(UserError, match="This service is closed"):
        first.stop(run)
    second = serve()
    assert second.get(run).process == process
    second.stop(run)
    assert [each.status for each in second.wait(timeout_s=60)] == ["stopped"]
    assert (second.root / run / "begun.txt").read_text().count("\n") == 1
    assert f"{run} continued without the service, as process {process.pid}, and is watched again." in said


@pytest.mark.parametrize(("restarts", "status"), [(0, "failed"), (1, "running")])
def test_a_run_that_died_meanwhile_is_told_by_the_next_service(restarts, status, serve):
    first = serve()
    run = first.submit(brief(LONG), restarts=restarts)
    process = begun(first, run)
    first.close()
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    second = serve()
    wait_until(
        lambda: (second.get(run).status == status and second.get(run).process != process) or second.get(run).reason
    )
    wait_until(lambda: second.get(run).status == status)
    if restarts:
        assert second.get(run).starts == 2
    else:
        assert re.match(
            r"The process ended .*\(last sign of life at \d{4}-\d\d-\d\d [\d:]{8} UTC\)", second.get(run).reason
        )


def test_a_stop_that_the_service_died_in_is_carried_out_by_the_next(serve):
    first = serve()
    run = first.submit(brief(LONG))
    begun(first, run)
    first.close()
    with closing(Store(first.root, since="")) as store:
        store.change(run, stop_asked=True)  # the first step of a stop; the signal was never sent
    second = serve()
    assert [each.status for each in second.wait(timeout_s=60)] == ["stopped"]


def test_a_run_that_saves_is_not_asked_to_stop_again(serve, monkeypatch):
    """A second SIGTERM would end it before it has saved."""
    first = serve()
    run = first.submit(brief(DEAF))
    process = begun(first, run)
    first.stop(run)
    first.close()
    asked = []
    monkeypatch.setattr(run_supervisor, "ask_to_stop", lambda folder, process: asked.append(process))
    second = serve(stop_grace_s=0.1)
    assert [each.status for each in second.wait(timeout_s=60)] == ["stopped"]
    assert asked == []
    assert is_alive(process) is False


def test_a_stop_in_the_queue_that_the_service_died_in_is_shown_by_the_next(serve):
    first = serve(max_runs=1)
    begun(first, first.submit(brief(LONG)))
    run = first.submit(brief())
    first.close()
    with closing(Store(first.root, since="")) as store:
        store.change(run, status="stopped", reason="Stopped before it began.")  # its folder was not written any more
    assert read_state(first.root / run).status == "queued"
    serve(max_runs=1)
    wait_until(lambda: read_state(first.root / run).status == "stopped")


def test_a_run_without_a_folder_is_given_one_by_the_next_service(serve):
    """What a service leaves that is killed in submit."""
    first = serve(max_runs=1)
    begun(first, blocking := first.submit(brief(LONG)))
    run = first.submit(brief())
    first.close()
    for path in (first.root / run).iterdir():
        path.unlink()
    (first.root / run).rmdir()
    second = serve(max_runs=1)
    assert read_state(second.root / run).status == "queued"
    second.stop(blocking)
    assert [each.status for each in second.wait(timeout_s=60)] == ["stopped", "finished"]


def test_a_second_service_on_the_folder_is_refused(serve):
    serve()
    with pytest.raises(ServiceRuns, match=rf"works on .*root already: process {os.getpid()} on \S+, since \S+;"):
        serve()


def test_a_root_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="choose another --root"):
        AgentTrainingService(tmp_path / "file" / "root")


# Faults of the machine


def test_a_full_disk_refuses_a_submission_whole(serve, monkeypatch):
    service = serve()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(state, "written_whole", full)
        with pytest.raises(UserError, match="No space left on device"):
            service.submit(brief(), run_id="mine")
        assert service.list() == []
        assert not (service.root / "mine").exists()
    service.submit(brief(), run_id="mine")
    assert [run.status for run in service.wait(timeout_s=60)] == ["finished"]


def test_a_full_disk_delays_what_is_queued_and_loses_nothing(serve, said, monkeypatch):
    service = serve(max_runs=1)
    begun(service, blocking := service.submit(brief(LONG)))
    run = service.submit(brief())
    refused = []

    def full(*args, **values):
        refused.append(args)
        raise StoreUnavailable("The queue cannot be used: the disk is full.")

    with monkeypatch.context() as disk:
        disk.setattr(Store, "change", full)
        os.kill(service.get(blocking).process.pid, signal.SIGTERM)
        wait_until(lambda: len(refused) >= 2)
        assert service.get(blocking).status == "running"
    assert [each.status for each in service.wait(timeout_s=60)] == ["stopped", "finished"]
    assert said.count("The queue cannot be used: the disk is full.") == 1
    assert (service.root / run / "begun.txt").read_text().count("\n") == 1


def test_an_end_that_the_disk_refused_is_shown_later(serve, monkeypatch):
    service = serve(max_runs=1)
    begun(service, service.submit(brief(LONG)))
    run = service.submit(brief())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(state, "written_whole", full)
        service.stop(run)
        assert (service.get(run).status, read_state(service.root / run).status) == ("stopped", "queued")
    wait_until(lambda: read_state(service.root / run).status == "stopped")


def test_a_process_that_could_not_be_written_down_never_begins(serve, monkeypatch):
    service = serve()
    usual, refused = Store.change, []

    def full(self, id, **values):
        if "starts" in values and len(refused) < 2:
            refused.append(values["process"])
            raise StoreUnavailable("The queue cannot be used: the disk is full.")
        return usual(self, id, **values)

    monkeypatch.setattr(Store, "change", full)
    run = service.submit(brief())
    assert [each.status for each in service.wait(timeout_s=60)] == ["finished"]
    assert (service.root / run / "begun.txt").read_text().count("\n") == 1
    assert len(refused) == 2
    wait_until(lambda: not any(is_alive(process) for process in refused))


def test_a_locked_queue_delays_and_loses_nothing(serve, said):
    service = serve()
    run = service.submit(brief(LONG))
    process = begun(service, run)
    service._store._connection.execute("PRAGMA busy_timeout = 20")
    command = [sys.executable, "-c", LOCK, str(service._store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: any("another program has locked it" in line for line in said))
        with pytest.raises(UserError, match="another program has locked it"):
            service.submit(brief(), run_id="refused")
        other.communicate("\n")
    assert [each.status for each in service.wait(timeout_s=60)] == ["stopped"]
    service.submit(brief(), run_id="refused")
    assert service.wait(timeout_s=60)[-1].status == "finished"


def test_a_clock_that_jumps_changes_nothing(serve, monkeypatch):
    service = serve(stop_grace_s=0.1)
    now = [time.time()]

    def jumping():
        now[0] += 10**7 if len(now) % 2 else -(10**8)
        return max(0.0, now[0])

    monkeypatch.setattr(time, "time", jumping)
    deaf, fine = service.submit(brief(DEAF)), service.submit(brief())
    begun(service, deaf)
    service.stop(deaf)
    assert [run.status for run in service.wait(timeout_s=60)] == ["stopped", "finished"]
    assert service.get(fine).starts == 1


def test_finished_runs_are_not_looked_at_again(serve, monkeypatch):
    service = serve()
    with service._changed:
        for i in range(200):
            service._store.add(run_supervisor.QueuedRun(id=f"old{i}", settings={}, changes={}, folder_of_work="/"))
            service._store.change(f"old{i}", status="finished")
    looked = []
    usual = run_supervisor.readable_state
    monkeypatch.setattr(run_supervisor, "readable_state", lambda folder: looked.append(folder.name) or usual(folder))
    run = service.submit(brief())
    service.wait([run], timeout_s=60)
    assert {*looked} == {run}
    assert len(service.list()) == 201


def test_waiting_ends_when_the_service_is_closed(serve):
    service = serve()
    service.submit(brief(LONG))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.wait)
        wait_until(lambda: service._changed._waiters)
        service.close()
        with pytest.raises(UserError, match="This service is closed"):
            waiting.result(timeout=60)
    with pytest.raises(UserError, match="This service is closed"):
        service.list()
    serve()  # so that its run is stopped at the end


def test_waiting_has_a_limit(serve):
    service = serve()
    run = service.submit(brief(LONG))
    assert [each.status for each in service.wait([run], timeout_s=0)] != ["finished"]
