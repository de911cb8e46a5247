"""Ranks on four machines that are network namespaces, with half a millisecond between them: the same weights as in one
process, also when a machine cannot be reached for 10 s, and an error that names it where it stays away."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.slow_network import Machines, machines
from tests.slow_module import N_ITERATIONS, SETTINGS, n_iterations, wait_for, write_module
from tests.training_commands import REPOSITORY, TRAIN, run, weights_in

N_MACHINES = 4
CUT_OFF = 2
CUT_S = 10.0
TIMEOUT_S = 20
ARGUMENTS = ["--env-id", "my_module:SlowEnv-v0", "--n-envs", "8", *SETTINGS]


def can_make_namespaces():
    return sys.platform == "linux" and os.geteuid() == 0 and os.access("/dev/net/tun", os.R_OK | os.W_OK)


pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces take Linux, root and /dev/net/tun"),
]


@pytest.fixture
def network() -> Iterator[Machines]:
    with machines(N_MACHINES, delay_s=0.5e-3, bits_per_s=1e9) as made:
        yield made


@contextlib.contextmanager
def started(network, folder, command_of) -> Iterator[list[subprocess.Popen]]:
    """A process on each machine, which writes to output-0 and so on."""
    write_module(folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)}
    with contextlib.ExitStack() as stack:
        ranks = []
        for machine in range(N_MACHINES):
            place = {"RANK": str(machine), "WORLD_SIZE": str(N_MACHINES), "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
            place |= {"MASTER_ADDR": network.address(0), "MASTER_PORT": "29500"}
            words = [*network.inside(machine), *map(str, command_of(machine))]
            output = stack.enter_context(open(folder / f"output-{machine}", "wb"))
            own = variables if "torchrun" in words else {**variables, **place}
            rank = subprocess.Popen(words, cwd=folder, env=own, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(rank.wait)
            stack.callback(rank.kill)
            ranks.append(rank)
        yield ranks


def told(folder):
    return "\n".join(path.read_text() for path in sorted(folder.glob("output-*")))


def named(rank, ranks):
    return f"rank {rank} ({os.uname().nodename}, process {ranks[rank].pid})"


def assert_equals_one_process(folder):
    run([*TRAIN, *ARGUMENTS, "--normalize-update", "rollout", "--checkpoint-dir", folder / "alone"], cwd=folder)
    assert weights_in(folder / "run" / "latest.pt").equal(weights_in(folder / "alone" / "latest.pt"))


def test_ranks_of_torchrun_have_the_weights_of_one_process(network, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    def command(machine):
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={network.address(0)}:29400", "--rdzv-id=test"]
        here = [f"--local-addr={network.address(machine)}", f"--rdzv-conf=is_host={int(machine == 0)}"]
        settings = [*ARGUMENTS, "--checkpoint-dir", tmp_path / "run"]
        return ["torchrun", f"--nnodes={N_MACHINES}", *meeting, *here, "-m", "ml_pipeline.train_ppo", *settings]

    with started(network, tmp_path, command) as agents:
        wait_for(lambda: None not in [agent.poll() for agent in agents], lambda: told(tmp_path))
        assert [agent.returncode for agent in agents] == [0] * N_MACHINES, told(tmp_path)
    assert_equals_one_process(tmp_path)


def test_a_machine_that_is_away_for_10_s_changes_nothing(network, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    command = [*TRAIN, *ARGUMENTS, "--checkpoint-dir", tmp_path / "run"]
    with started(network, tmp_path, lambda machine: command) as ranks:
        wait_for(lambda: n_iterations(tmp_path / "run") >= 2, lambda: told(tmp_path))
        network.cut_off(CUT_OFF)
        threading.Event().wait(CUT_S)
        assert n_iterations(tmp_path / "run") < N_ITERATIONS
        network.connect(CUT_OFF)
        wait_for(lambda: None not in [rank.poll() for rank in ranks], lambda: told(tmp_path))
        assert [rank.returncode for rank in ranks] == [0] * N_MACHINES, told(tmp_path)
    assert_equals_one_process(tmp_path)


def test_a_machine_that_stays_away_is_named_within_the_timeout(network, tmp_path):
    command = [*TRAIN, *ARGUMENTS, "--checkpoint-dir", tmp_path / "run", "--rank-timeout-s", TIMEOUT_S]
    with started(network, tmp_path, lambda machine: command) as ranks:
        wait_for(lambda: n_iterations(tmp_path / "run") >= 2, lambda: told(tmp_path))
        network.cut_off(CUT_OFF)
        wait_for(lambda: None not in [rank.poll() for rank in ranks], lambda: told(tmp_path))
        assert [rank.returncode for rank in ranks] == [75] * N_MACHINES, told(tmp_path)
        assert named(CUT_OFF, ranks) in (tmp_path / "output-0").read_text()


def test_the_first_machine_is_named_by_all_others_where_it_stays_away(network, tmp_path):
    command = [*TRAIN, *ARGUMENTS, "--checkpoint-dir", tmp_path / "run", "--rank-timeout-s", TIMEOUT_S]
    with started(network, tmp_path, lambda machine: command) as ranks:
        wait_for(lambda: n_iterations(tmp_path / "run") >= 2, lambda: told(tmp_path))
        network.cut_off(0)
        wait_for(lambda: None not in [rank.poll() for rank in ranks], lambda: told(tmp_path))
        assert [rank.returncode for rank in ranks] == [75] * N_MACHINES, told(tmp_path)
        for machine in range(1, N_MACHINES):
            assert named(0, ranks) in (tmp_path / f"output-{machine}").read_text(), told(tmp_path)
        assert named(1, ranks) in (tmp_path / "output-0").read_text(), told(tmp_path)  # as it saw it
