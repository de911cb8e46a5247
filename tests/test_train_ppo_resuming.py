"""Runs that are interrupted and resumed, and run folders that are left as they are."""

import signal
import subprocess
from contextlib import suppress

import psutil
import pytest
import torch

from ml_pipeline import train_ppo
from ml_pipeline.runs.state import read_state
from tests.training_commands import (
    EPISODES,
    REPOSITORY,
    SMALL,
    TRAIN,
    contents,
    evaluate,
    train,
    weights_in,
    write_prices,
)

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("short_built_in_market", "undrawn_reports")]

LONG = [*EPISODES, *SMALL, "--iterations", "30", "--checkpoint-interval", "3", "--eval-interval", "100"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a small finished run on the built-in market."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(*SMALL, "--iterations", "1", "--checkpoint-dir", folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train(*LONG, "--checkpoint-dir", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signal_number", "to_all"),
    [(signal.SIGKILL, False), (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
def test_a_run_that_is_stopped_and_resumed_ends_as_if_it_had_not_been(signal_number, to_all, uninterrupted, tmp_path):
    """to_all: the signal goes to all processes of the run, as service managers send it."""
    command = [*TRAIN, *LONG, "--n-workers", "2", "--checkpoint-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("Episode 10/"):
                for other in psutil.Process(process.pid).children(recursive=True) if to_all else ():
                    with suppress(psutil.NoSuchProcess):  # one that ended in between
                        other.send_signal(signal_number)
                process.send_signal(signal_number)
                break
        rest = process.stdout.read()
    state = read_state(tmp_path)
    if signal_number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert (state.status, "ended without a message" in state.reason) == ("failed", True)
    else:
        assert process.returncode == 128 + signal_number
        assert (state.status, state.reason) == ("stopped", f"Stopped by {signal_number.name}.")
        assert f"--resume {tmp_path}" in rest
    done = train("--resume", "auto", "--checkpoint-dir", tmp_path)
    assert "Resuming after iteration" in done.stdout
    assert torch.equal(weights_in(tmp_path / "latest.pt"), weights_in(uninterrupted / "latest.pt"))
    for name, columns in (("metrics.jsonl", slice(0)), ("monitor.csv", slice(0, 2))):
        ours, theirs = (
            [line for line in (folder / name).read_text().splitlines() if line[0] != "#"]  # which has the time
            for folder in (tmp_path, uninterrupted)
        )
        assert len(ours) == len(theirs)  # every iteration and episode once
        assert [line.split(",")[columns] for line in ours] == [line.split(",")[columns] for line in theirs]


@pytest.mark.slow
def test_a_run_that_is_being_written_is_neither_resumed_nor_written_over(tmp_path):
    folder = tmp_path / "run"
    endless = [*TRAIN, *EPISODES, *SMALL, "--iterations", "1000000", "--checkpoint-dir", str(folder)]
    with subprocess.Popen(endless, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            next(line for line in process.stdout if line.startswith("Episode 10/"))
            for options in (["--resume", folder], ["--resume", "auto", "--checkpoint-dir", folder], endless[3:]):
                told = train(*options, expect=2).stderr
                assert told.startswith(f"train_ppo.py: {folder} is being written by process {process.pid} on ")
                assert told.count("\n") == 1
        finally:
            process.kill()


def test_training_that_ends_early_is_evaluated_and_ends_there_after_a_resumption_too(tmp_path, capsys):
    still = [*EPISODES, *SMALL, "--n-workers", "0", "--eval-interval", "100", "--learning-rate", "1e-9"]
    plateau = [*still, "--stop-on-plateau", "4", "--iterations", "50"]
    assert train_ppo.main([*plateau, "--checkpoint-dir", str(tmp_path / "whole")]) == 0
    n_iterations = len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    assert n_iterations < 50
    out = capsys.readouterr().out
    assert f"Training ends early, after iteration {n_iterations}." in out
    assert "Evaluation on a single CartPole-v1: return " in out
    interrupted = [*still, "--stop-on-plateau", "4", "--iterations", str(n_iterations - 2)]
    assert train_ppo.main([*interrupted, "--checkpoint-dir", str(tmp_path / "parts")]) == 0
    assert train_ppo.main(["--resume", str(tmp_path / "parts"), "--iterations", "50"]) == 0
    assert len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) == n_iterations
    target = [*still, "--iterations", "50", "--stop-at-return", "5", "--checkpoint-dir", str(tmp_path / "target")]
    assert train_ppo.main(target) == 0
    assert len((tmp_path / "target" / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_folder_that_holds_a_run_is_not_written_over(finished):
    folder = finished
    before = contents(folder)
    done = train("--checkpoint-dir", folder, expect=2)
    assert f"continue it with --resume {folder}" in done.stderr
    assert contents(folder) == before


def test_a_damaged_checkpoint_is_named_and_the_run_is_left_as_it_is(finished, tmp_path):
    folder = finished
    (tmp_path / "config.yaml").write_bytes((folder / "config.yaml").read_bytes())
    (tmp_path / "latest.pt").write_bytes((folder / "latest.pt").read_bytes()[:1000])
    for done in (train("--resume", tmp_path, expect=2), evaluate(tmp_path / "latest.pt", expect=2)):
        assert "cannot be read as a checkpoint" in done.stderr


def test_a_checkpoint_of_another_network_is_refused(finished, tmp_path):
    folder = finished
    for name in ("config.yaml", "latest.pt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    saved = torch.load(tmp_path / "latest.pt", weights_only=True)
    saved["trainer"]["policy"]["fits"]["observation space"] = "Box(99,)"
    torch.save(saved, tmp_path / "latest.pt")
    before = contents(tmp_path)
    done = train("--resume", tmp_path, expect=2)
    assert "observation space Box(99,), but here it is" in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "changed",
    [
        ["--n-envs", "3"],
        ["--n-steps", "16"],
        ["--fee-bps", "500"],
        ["--hidden-sizes", "9"],
        ["--env-id", "CartPole-v1"],
    ],
    ids=" ".join,
)
def test_a_resumed_run_keeps_what_it_is_made_of_and_a_refusal_leaves_it_alone(finished, changed):
    folder = finished
    before = contents(folder)
    done = train("--resume", folder, *changed, expect=2)
    assert f"{changed[0]} " in done.stderr
    assert f"which cannot change on resume, but got {changed[1]}" in done.stderr
    assert contents(folder) == before


def test_a_run_whose_data_have_changed_is_not_gone_on_with(tmp_path):
    prices, folder = tmp_path / "prices.csv", tmp_path / "run"
    write_prices(prices, n_days=600)
    train(*SMALL, "--iterations", "2", "--episode-length", "32", "--data", prices, "--checkpoint-dir", folder)
    write_prices(prices, n_days=700)
    before = contents(folder)
    done = train("--resume", folder, "--iterations", "4", expect=2)
    assert "differ from those that the run was trained on" in done.stderr
    assert contents(folder) == before
