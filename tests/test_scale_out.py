"""The benchmark of several machines: its page says what its figures say, and its network what it was asked for."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.measured_page import PAGE, with_measured_part
from benchmarks.scale_out import COMPARISONS, ON_MACHINES
from benchmarks.scale_out_group import Job, Timing, exchanged, trained
from benchmarks.scale_out_page import (
    FIGURES,
    NAME,
    conclusions,
    measured_part,
    ratios,
)
from benchmarks.slow_network import Link, machines


def made_up():
    """Figures with round constants, in which each group reaches twice the rate of its first."""
    groups = []
    for on_machines, comparisons in ((False, COMPARISONS), (True, ON_MACHINES)):
        for name, of_name in comparisons.items():
            for i, (group, job) in enumerate(of_name.items()):
                rates = [100.0 * 2**i, 110.0 * 2**i, 90.0 * 2**i]
                timing = Timing(iteration_s=1.0, acting_s=0.1, stepping_s=0.8, learning_s=0.1, exchange_s=0.002 * i)
                row = {"comparison": name, "group": group, "on_machines": on_machines, "steps_per_second": rates}
                groups.append({**row, **asdict(job), **asdict(timing)})
    return {
        "machine": {"cores": 2.0, "system": "Linux", "python": "3.13", "torch": "2.13"},
        "network": {"delay_s": 5e-4, "bits_per_s": 1e9},
        "learning": {"num_envs": 256, "n_steps": 32, "learning_s": 0.08192},
        "exchanges": {
            "one machine": {"2": {"short_s": 4e-4, "more_s": 1e-3, "more_bytes": 1e6}},
            "machines": {"2": {"short_s": 2.4e-3, "more_s": 1e-2, "more_bytes": 1e6}},
        },
        "groups": groups,
    }


def test_the_page_says_what_the_figures_say():
    figures = made_up()
    assert {ratio for _, group, ratio in ratios(figures) if group.startswith("2 ")} == {2.0}
    part = measured_part(figures)
    assert "two ranks train 2.00 times as fast as one process" in part
    assert "|  | 4 machines, 256 environments | 400 | 4.00 | 0.40 % |" in part
    assert "| 2 processes of one machine | 0.4 ms | 1.4 ms |" in part
    assert "10 µs per transition" in conclusions(figures)[0]  # 0.08192 s for 8,192 transitions
    assert "100 times as fast at 1 ms" in conclusions(figures)[0]


def test_writing_the_measured_part_twice_changes_nothing_more():
    figures = made_up()
    page = with_measured_part(PAGE.read_text(), NAME, measured_part(figures))
    assert with_measured_part(page, NAME, measured_part(figures)) == page
    assert page.startswith(PAGE.read_text().partition(f"<!-- {NAME}: begin -->")[0])


def test_the_page_shows_the_figures_that_are_kept():
    page = PAGE.read_text()
    assert with_measured_part(page, NAME, measured_part(json.loads(FIGURES.read_text()))) == page


def test_a_link_carries_one_packet_after_another():
    link = Link(n_machines=3, delay_s=1.0, bytes_per_s=10.0)
    assert link.arrival(0, 1, n_bytes=10, now_s=0.0) == 2.0
    assert link.arrival(0, 2, n_bytes=10, now_s=0.0) == 3.0  # the sender's link is taken for 1 s
    assert link.arrival(2, 1, n_bytes=20, now_s=0.0) == 4.0  # the receiver's, until 2 s
    assert link.arrival(0, 1, n_bytes=10, now_s=9.0) == 11.0  # both are free again


@pytest.mark.long
def test_a_group_trains_and_is_timed():
    job = Job(step="CartPole", num_envs=5, n_steps=64, ranks=2, iterations=1)
    timing = trained(job)
    assert 0 < timing.exchange_s < timing.iteration_s
    assert set(exchanged(2)) == {"short_s", "more_s", "more_bytes"}


@pytest.mark.long
def test_a_rank_that_fails_ends_the_group(capfd):
    with pytest.raises(RuntimeError, match="failed; see above"):
        trained(Job(step="CartPole", num_envs=5, n_steps=1, ranks=0))
    assert "minibatch_size must be at most" in capfd.readouterr().err


@pytest.mark.system
@pytest.mark.skipif(
    not (sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") and Path("/dev/net/tun").exists()),
    reason="namespaces need Linux, root and ip",
)
def test_machines_reach_each_other_and_are_gone_afterwards():
    code = (
        "import socket, sys; server = socket.create_server((sys.argv[1], 5000)); print('up', flush=True); "
        "print(len(server.accept()[0].recv(300_000, socket.MSG_WAITALL)))"
    )
    ask = "import socket, sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes(300_000))"
    with machines(2, delay_s=1e-3, bits_per_s=1e9) as both:
        command = [*both.inside(0), sys.executable, "-c", code, both.address(0)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            subprocess.run([*both.inside(1), sys.executable, "-c", ask, both.address(0)], check=True)
            assert server.stdout.readline() == "300000\n"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"scale{os.getpid()}-" not in left
