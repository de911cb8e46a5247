"""The benchmark of several machines: its page says what its figures say, and its network what it was asked for."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.measured_page import with_measured_part
from benchmarks.scale_out import COMPARISONS, ON_MACHINES
from benchmarks.scale_out_group import Job, Timing, exchanged, trained
from benchmarks.scale_out_model import constants, networks, predicted, training_of_steps
from benchmarks.scale_out_page import (
    FIGURES,
    PAGE,
    _draw,
    conclusions,
    measured_part,
    ratios,
    with_predictions,
)
from benchmarks.slow_network import Link, machines
from ml_pipeline.models.rl.distributed.cost_model import Network, speedup


def piece(*, num_envs, n_steps, one_s, acting_s=0.0, learning_s=0.0):
    """Times of a piece whose environments take `one_s` a step, one after another."""
    times = {"stepping_s": one_s * num_envs * n_steps, "acting_s": acting_s * n_steps, "learning_s": learning_s}
    return {"num_envs": num_envs, "n_steps": n_steps, **times}


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
        "pieces": {
            "waits 1 ms": piece(num_envs=4, n_steps=10, one_s=1.1e-3),
            "waits 2 ms": piece(num_envs=4, n_steps=10, one_s=2.1e-3),
            "computes 1 ms": piece(num_envs=4, n_steps=10, one_s=1e-3),
            "CartPole": piece(num_envs=16, n_steps=10, one_s=5e-6),
            "few": piece(num_envs=16, n_steps=256, one_s=0.0, acting_s=1.16e-4),
            "many": piece(num_envs=256, n_steps=32, one_s=0.0, acting_s=3.56e-4, learning_s=0.08192),
        },
        "wake_s": {"2 cores": 6e-5, "1 core": 3e-6},
        "exchanges": {
            "one machine": {"2": {"short_s": 4e-4, "more_s": 1e-3, "more_bytes": 1e6}},
            "machines": {"2": {"short_s": 2.4e-3, "more_s": 1e-2, "more_bytes": 1e6}},
        },
        "groups": groups,
    }


def group_of(figures, name):
    return next(group for group in figures["groups"] if group["group"].startswith(name))


def test_constants_are_taken_from_the_pieces():
    found = constants(made_up())
    # 240 more environments take 0.24 ms more: 1 µs each; 16 of them 16 of 116 µs. 0.08192 s for 8,192 transitions.
    assert (found.acting_row_s, found.acting_call_s, found.learning_s) == pytest.approx((1e-6, 1e-4, 1e-5))
    assert found.between_processes == Network(hop_s=2e-4, bytes_per_s=1e9)
    assert found.between_machines == Network(hop_s=1.2e-3, bytes_per_s=1e8)


def test_other_networks_keep_the_time_in_programs():
    fast, measured, slow = networks(made_up()).values()
    # 0.2 ms of a hop are programs'; 0.8 of 1 Gbit/s were reached; and no more than between two processes.
    assert (fast.hop_s, fast.bytes_per_s) == pytest.approx((3e-4, 1e9))
    assert measured == constants(made_up()).between_machines
    assert (slow.hop_s, slow.bytes_per_s) == pytest.approx((40.2e-3, 1e7))


def test_predictions_of_measured_groups():
    figures = made_up()
    four = predicted(figures, group_of(figures, "4 machines"))
    # 64 of 256 environments: 32 * 64 * 1.1 ms; 32 * (0.1 + 0.064) ms; twice 3 hops and 3 * 32 * 64 * 34 bytes; learning
    # by four ranks on two cores.
    assert (four.stepping_s, four.acting_s) == pytest.approx((2.2528, 5.248e-3))
    assert four.exchanging_s == pytest.approx(6 * 1.2e-3 + 208_896 / 1e8)
    assert four.learning_s == pytest.approx(2 * 0.08192)
    two = predicted(figures, group_of(figures, "2 ranks, 8 environments"))
    assert two.stepping_s == pytest.approx(256 * 4e-3)
    assert two.exchanging_s == pytest.approx(2 * 2e-4 + 256 * 4 * 34 / 1e9)
    workers = predicted(figures, group_of(figures, "1 process, 2 workers"))
    assert workers.exchanging_s == 0.0
    assert workers.stepping_s == pytest.approx(256 * 4e-3, rel=0.05)
    waiting = predicted(figures, group_of(figures, "1 rank, 8 environments"))
    assert waiting.stepping_s < 2 * 256 * 2.1e-3  # side by side


def test_a_longer_step_is_worth_more_machines():
    figures = made_up()
    gains = [
        speedup(training_of_steps(figures, step_s), 16, networks(figures)["100 Mbit/s, 20 ms"])
        for step_s in (1e-4, 1e-3, 1e-2)
    ]
    assert gains == sorted(gains)


def test_the_page_says_what_the_figures_say():
    figures = with_predictions(made_up())
    assert {ratio for _, group, ratio in ratios(figures) if group.startswith("2 ")} == {2.0}
    part = measured_part(figures)
    assert "two ranks train 2.00 times as fast as one process" in part
    assert "|  | 4 machines, 256 environments | 400 | 4.00 | 0.40 % |" in part
    assert "| learning, a transition | 10 µs |" in part
    assert "100 times at 1 ms" in conclusions(figures)[1]


def test_writing_the_measured_part_twice_changes_nothing_more():
    figures = with_predictions(made_up())
    page = with_measured_part(PAGE.read_text(), measured_part(figures))
    assert with_measured_part(page, measured_part(figures)) == page
    assert page.startswith(PAGE.read_text().partition("<!-- measured: begin -->")[0])


def test_the_page_shows_the_figures_that_are_kept():
    page = PAGE.read_text()
    if FIGURES.exists():
        assert with_measured_part(page, measured_part(json.loads(FIGURES.read_text()))) == page
    else:
        assert "No figures of an idle machine are published yet" in page


def test_the_picture_is_drawn(tmp_path):
    _draw(with_predictions(made_up()), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


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
