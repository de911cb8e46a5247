"""What differs between ranks is named before they train; ranks that start again find the run they left."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from ml_pipeline.runs.ranks import relaunch, start
from ml_pipeline.runs.ranks.context import RankContext, SharedError
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.ranks.relaunch import RANKS_FILE, left_run
from ml_pipeline.runs.state import STATE_FILE
from ml_pipeline.runs.train_command_line import read_train_flags
from tests.runs.ranks.small_ranked_runs import train

ARGUMENTS = ["--env-id", "CartPole-v1", "--n-envs", "4"]


def place_of(group, launch="job 7"):
    return RankInfo(group.rank, group.size, group.size, launch, 0)


def started(group, arguments, own=(), versions=None):
    """What the ranks agree on; own: further arguments of rank 1. versions: another torch on rank 1."""
    ranks = RankContext(group, launch="job 7")
    if group.rank == 1:
        arguments = [*arguments, *own]
        if versions:
            facts = {**start.this_machine(), **versions}
            start.this_machine = lambda: facts
    try:
        begun, _ = start.start_of_ranks(read_train_flags(arguments), ranks, place_of(group))
    except SharedError as error:
        return str(error)
    return begun.config


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (["--gamma", "0.5"], "gamma, but rank 0 (HOST) has none given and rank 1 (HOST) has 0.5"),
        (["--n-envs", "8"], "n_envs, but rank 0 (HOST) has 4 and rank 1 (HOST) has 8"),
        (["--seed", "3"], "the seed, but rank 0 (HOST) has 0 and rank 1 (HOST) has 3"),
    ],
)
def test_other_settings_are_named(server, own, sentence):
    told = server.values(started, 2, ARGUMENTS, own)
    assert len(set(told)) == 1
    without_hosts = re.sub(r"\(\S+, process \d+\)", "(HOST)", told[0])
    assert without_hosts == f"Ranks must agree on {sentence}; start all ranks with the same command."


def test_other_versions_are_named(server):
    (told,) = set(server.values(started, 2, ARGUMENTS, (), {"torch": "1.0"}))
    assert told.startswith("Ranks must agree on torch, but rank 0 (")
    assert told.endswith("has 1.0; install the same versions on all machines.")


def with_other_prices(group, folder):
    return started(group, ["--data", str(folder / str(group.rank) / "prices.csv"), "--n-envs", "4"])


def test_other_market_data_are_named(server, tmp_path):
    for rank in range(2):
        closes = [1.5 + rank * (minute == 90) for minute in range(600)]
        times = [f"2020-01-01T{minute // 60:02}:{minute % 60:02}" for minute in range(600)]
        rows = [f"{time},1,2.5,1,{close},5" for time, close in zip(times, closes, strict=True)]
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "prices.csv").write_text("\n".join(["time,open,high,low,close,volume", *rows]))
    (told,) = set(server.values(with_other_prices, 2, tmp_path))
    assert told.startswith("Ranks must agree on data, but rank 0 (")


def test_what_each_machine_may_choose_may_differ(server):
    first, second = server.values(started, 2, ARGUMENTS, ["--n-workers", "0", "--max-restarts", "9"])
    assert (first.run.n_workers, second.run.n_workers) == ("auto", 0)
    assert first.ppo == second.ppo
    assert first.ppo.normalize_update == "rollout"


def started_on(group, devices):
    """`started` on machines with two GPUs, as far as torch is asked."""
    torch.cuda.device_count = lambda: 2
    os.environ["LOCAL_RANK"] = str(group.rank)
    begun = started(group, [*ARGUMENTS, "--device", devices[group.rank]])
    return begun if isinstance(begun, str) else begun.run.device


@pytest.mark.parametrize("devices", [("cpu", "cuda"), ("cuda", "auto")])
def test_another_kind_of_device_is_named(server, devices):
    (told,) = set(server.values(started_on, 2, devices))
    kinds = ["cuda" if device == "cuda" else "cpu" for device in devices]
    assert re.sub(r"\(\S+, process \d+\)", "(HOST)", told) == (
        f"Ranks must agree on the kind of device, but rank 0 (HOST) has {kinds[0]} and rank 1 (HOST) has {kinds[1]}; "
        "pass the same --device to all ranks."
    )


@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("auto", "cpu")])
def test_names_of_one_kind_of_device_may_differ(server, devices):
    assert server.values(started_on, 2, devices) == list(devices)


def left_by(group, roots, given=None, launch="job 7", restart=0):
    """The run that is found where each rank sees another folder of runs."""
    relaunch.runs_folder = lambda: roots[group.rank]
    ranks = RankContext(group, launch=launch)
    found = left_run(ranks, place_of(group, launch)._replace(restart=restart), given)
    return None if found is None else (found.folder, found.iterations)


def leave(folder, *, launch="job 7", iterations=4, status="running"):
    train(None, folder, iterations=iterations)
    (folder / RANKS_FILE).write_text(json.dumps({"size": 2, "members": [], "launches": [launch]}))
    state = json.loads((folder / STATE_FILE).read_text())
    (folder / STATE_FILE).write_text(json.dumps({**state, "status": status, "host": "a machine that is gone"}))


def test_the_run_of_this_launch_is_found_and_no_other(server, tmp_path):
    leave(tmp_path / "mine")
    leave(tmp_path / "another", launch="job 8")
    leave(tmp_path / "finished", status="finished")
    assert server.values(left_by, 2, [tmp_path] * 2) == [(tmp_path / "mine", 4)] * 2
    assert server.values(left_by, 2, [tmp_path] * 2, None, "job 9") == [None] * 2
    assert json.loads((tmp_path / "mine" / STATE_FILE).read_text())["status"] == "failed"  # nobody writes it any more


def test_ranks_that_start_again_find_the_run_that_they_finished(server, tmp_path):
    """As after a crash of a rank while it ends: there is nothing to train, and no second run to begin."""
    leave(tmp_path / "run", status="finished")
    assert server.values(left_by, 2, [tmp_path] * 2) == [None] * 2  # a new job, named as the one before
    assert server.values(left_by, 2, [tmp_path] * 2, None, "job 7", 1) == [(tmp_path / "run", 4)] * 2
    assert server.values(left_by, 2, [tmp_path] * 2, tmp_path / "run", "job 8", 1) == [None] * 2
    assert json.loads((tmp_path / "run" / STATE_FILE).read_text())["status"] == "finished"


def test_a_folder_that_the_first_rank_sees_late_is_sent_to_it(server, tmp_path):
    """As on a machine without the disk of the one before it, or with an older view of it."""
    first, second = tmp_path / "first", tmp_path / "second"
    leave(second / "run", iterations=4)
    first.mkdir()
    folder, iterations = server.values(left_by, 2, [first, second])[0]
    assert iterations == 4
    assert folder == second / "run"  # the path that the first rank now has, too
    leave(first / "run", iterations=2)
    assert server.values(left_by, 2, [first, second]) == [(first / "run", 4)] * 2
    for name in ("latest.pt", "best.pt", "metrics.jsonl", "monitor.csv"):
        assert (first / "run" / name).read_bytes() == (second / "run" / name).read_bytes()


def test_clocks_do_not_decide_which_checkpoint_is_the_newest(server, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    leave(first / "run", iterations=4)
    leave(second / "run", iterations=2)
    for path in [second / "run", *(second / "run").iterdir()]:
        os.utime(path, (2**33, 2**33))  # in two hundred years
    assert server.values(left_by, 2, [first, second]) == [(first / "run", 4)] * 2


def test_what_a_dying_machine_left_of_a_checkpoint_is_not_read(server, tmp_path):
    leave(tmp_path / "run", iterations=2)
    Path(tmp_path / "run" / "latest.pt.tmp").write_bytes(b"half of it")
    assert server.values(left_by, 2, [tmp_path] * 2) == [(tmp_path / "run", 2)] * 2
