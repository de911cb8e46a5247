"""Ranks on a Ray cluster of two machines: where they run, who is started again, and what reaches the terminal."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib.util import find_spec

import psutil
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.ranks.ray_launcher import ray_cluster
from tests.runs.ranks.ray_machines import ROOT, ray_machines
from tests.training_commands import TRAIN, run, weights_in

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: make test-system has it")
SMALL_RUN = [
    *(
        "--env-id",
        "tests.runs.ranks.waiting_env:Waiting-v0",
        "--eval-episodes",
        "1",
        "--n-envs",
        "8",
        "--n-steps",
        "32",
    ),
    *("--n-workers", "0", "--minibatch-size", "64", "--n-epochs", "2", "--hidden-sizes", "8"),
    *("--total-timesteps", "5120"),
]
# What starts ranks that are a few lines of Python, and passes on the signals that it gets.
LAUNCH = """
import signal, sys
from ml_pipeline.runs.ranks.ray_launcher import RayLauncher, ray_cluster
def write(stream, lines):
    getattr(sys, stream).buffer.write(lines)
    getattr(sys, stream).flush()
with ray_cluster() as ray:
    say = lambda sentence: print("SAID", sentence, flush=True)
    how = {"size": int(sys.argv[1]), "with_gpu": sys.argv[2] == "gpu", "max_restarts": 2}
    with RayLauncher(sys.argv[3:], **how, say=say, write=write, ray=ray) as launcher:
        signal.signal(signal.SIGTERM, lambda number, _: launcher.pass_on(number))
        sys.exit(launcher.run())
"""
RANK = """
import json, os, signal, sys
from pathlib import Path
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
note = Path({folder!r}) / (restart + "-" + os.environ["RANK"])
note.with_suffix(".new").write_text(json.dumps(dict(os.environ, PID=os.getpid(), ACTOR=os.getppid())))
note.with_suffix(".new").rename(note)
"""


@pytest.fixture(scope="module")
def machines():
    with ray_machines(n_cpus=2) as started:
        yield started


@contextmanager
def launched(machines, folder, code, *, size, device="cpu"):
    command = [sys.executable, "-c", LAUNCH, str(size), device, "-c", RANK.format(folder=str(folder)) + code]
    with subprocess.Popen(
        command, cwd=ROOT, env=machines.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def notes(folder, restart, size):
    """The variables of each rank, once all of a restart have begun."""
    paths = [folder / f"{restart}-{rank}" for rank in range(size)]
    wait_for(lambda: all(path.exists() for path in paths))
    return [json.loads(path.read_text()) for path in paths]


def wait_for(condition, timeout_s=300.0):
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail("it did not come")


def said(process):
    return [line.removeprefix("SAID ") for line in process.stdout.read().splitlines() if line.startswith("SAID ")]


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'needs the extra "ray": pip install -e "\.\[ray\]"'), ray_cluster():
        pass


@needs_ray
@pytest.mark.system
@pytest.mark.timeout(600)
def test_ranks_are_spread_over_both_machines_and_told_so(machines, tmp_path):
    with launched(machines, tmp_path, "print('rank', os.environ['RANK'])\n", size=4) as process:
        variables = notes(tmp_path, 0, 4)
        lines = process.stdout.read().splitlines()
        assert process.wait(60) == 0
    assert sorted(line for line in lines if line.startswith("rank")) == [f"rank {rank}" for rank in range(4)]
    places = [(each["GROUP_RANK"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in variables]
    assert places == [("0", "0", "2"), ("0", "1", "2"), ("1", "0", "2"), ("1", "1", "2")]
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"):
        assert len({each[name] for each in variables}) == 1
    assert {each["RAY_USAGE_STATS_ENABLED"] for each in variables} == {"0"}


@needs_ray
@pytest.mark.system
@pytest.mark.timeout(600)
def test_each_rank_of_a_machine_has_the_gpu_that_ray_gave_it(tmp_path):
    """Two on each machine, as far as Ray is told, of which it lets a rank see one: to torch that is number 0."""
    code = """
import torch
from ml_pipeline.models.rl.policies.threads_and_device import choose_device
seen = os.environ["CUDA_VISIBLE_DEVICES"]
torch.cuda.device_count = lambda: len(seen.split(","))
print("rank", os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"], "of", seen, "takes", choose_device("cuda"))
"""
    with (
        ray_machines(n_cpus=2, n_gpus=2) as machines,
        launched(machines, tmp_path, code, size=4, device="gpu") as ranks,
    ):
        lines = sorted(line.split() for line in ranks.stdout.read().splitlines() if line.startswith("rank"))
        assert ranks.wait(60) == 0
    assert [line[1:3] for line in lines] == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
    assert [{line[4] for line in lines[i : i + 2]} for i in (0, 2)] == [{"0", "1"}] * 2
    assert {line[-1] for line in lines} == {"cuda"}


@needs_ray
@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_signal_reaches_every_rank_and_is_the_exit_code(machines, tmp_path):
    with launched(machines, tmp_path, "signal.pause()\n", size=2) as process:
        notes(tmp_path, 0, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM


@needs_ray
@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("whom", ["rank", "actor"])
def test_where_one_is_killed_all_start_again(whom, machines, tmp_path):
    with launched(machines, tmp_path, "restart == '0' and signal.pause()\n", size=2) as process:
        first = notes(tmp_path, 0, 2)
        psutil.Process(int(first[1]["PID" if whom == "rank" else "ACTOR"])).kill()
        notes(tmp_path, 1, 2)
        sentences = said(process)
        assert process.wait(120) == 0
    assert sentences == [
        "Rank 1 was killed by SIGKILL. Restarting all 2 ranks from the last checkpoint (restart 1 of 2)."
    ]
    assert not any(psutil.pid_exists(int(each["PID"])) for each in first)


@needs_ray
@pytest.mark.system
@pytest.mark.timeout(600)
def test_where_a_machine_is_lost_as_many_start_again_as_there_is_room_for(tmp_path):
    with ray_machines(n_cpus=2) as machines:
        code = "restart == '0' and signal.pause()\n"
        with launched(machines, tmp_path, code, size=4) as process:
            notes(tmp_path, 0, 4)
            machines.kill_second()
            again = notes(tmp_path, 1, 2)
            sentences = said(process)
            assert process.wait(120) == 0
    assert [each["WORLD_SIZE"] for each in again] == ["2", "2"]
    assert "The Ray cluster has room for 2 ranks of 4." in sentences


@needs_ray
@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_run_that_loses_a_machine_has_the_weights_of_one_process(tmp_path):
    settings = [*SMALL_RUN, "--checkpoint-interval", "1"]
    alone, on_ray = tmp_path / "alone", tmp_path / "on_ray"
    run([*TRAIN, *settings, "--normalize-update", "rollout", "--checkpoint-dir", alone])
    with ray_machines(n_cpus=2) as machines:
        command = [*TRAIN, *settings, "--launcher", "ray", "--n-processes", "4", "--checkpoint-dir", on_ray]
        with subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env=machines.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            wait_for(lambda: lines_in(on_ray / "metrics.jsonl") >= 2)
            machines.kill_second()
            told = process.stdout.read()
            assert process.wait(60) == 0, told
    assert "Restarting all 4 ranks from the last checkpoint (restart 1 of 3)." in told
    assert "room for 2 ranks of 4" in told
    assert lines_in(on_ray / "metrics.jsonl") == lines_in(alone / "metrics.jsonl")
    assert weights_in(on_ray / "latest.pt").equal(weights_in(alone / "latest.pt"))


def lines_in(path):
    return len(path.read_text().splitlines()) if path.exists() else 0
