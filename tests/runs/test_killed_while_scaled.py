"""A run that is scaled at any moment, and killed in between, ends as one that was started with what was recorded."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.sinks import read_lines
from ml_pipeline.runs.requests import write_request
from tests.small_runs import weights
from tests.training_commands import REPOSITORY, TRAIN, train

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform == "win32", reason="kills by SIGKILL"),
]
SETTINGS = [
    *("--env-id", "CartPole-v1", "--n-envs", "4", "--n-steps", "32", "--minibatch-size", "32", "--n-epochs", "1"),
    *("--hidden-sizes", "8", "--seed", "9", "--total-timesteps", "12000", "--eval-interval", "20"),
    *("--eval-episodes", "1", "--checkpoint-interval", "3"),
]
N_KILLS = 3


@pytest.mark.parametrize("n_workers", ["0", "2", "dynamic"])
def test_a_run_that_is_scaled_and_killed_at_any_moment_repeats_what_it_recorded(n_workers, tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown where it fails
    moments, folder = random.Random(seed), tmp_path / "scaled"
    start = [*TRAIN, *SETTINGS, "--n-workers", n_workers, "--checkpoint-dir", str(folder)]
    kills, asked = 0, 0
    while True:
        with subprocess.Popen(start, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            last = iterations(folder) + moments.randrange(1, 30)
            while process.poll() is None:
                if kills < N_KILLS and iterations(folder) >= last:
                    os.kill(process.pid, signal.SIGKILL)
                    kills += 1
                    process.wait()
                elif (folder / "latest.pt").exists():
                    asked += ask_for_something(folder, moments)
                time.sleep(0.02)
            message = process.stderr.read().decode()
        if process.returncode != -signal.SIGKILL:
            break
        start = [*TRAIN, "--resume", str(folder)]
    assert process.returncode == 0, message
    recorded = yaml.safe_load((folder / "config.yaml").read_text())["n_envs_schedule"]
    assert (kills, asked > 0, len(recorded) > 0) == (N_KILLS, True, True)
    again = tmp_path / "again"
    schedule = [f"{step}:{n_envs}" for step, n_envs in recorded.items()]
    train(*SETTINGS, "--n-workers", "0", "--checkpoint-dir", again, "--n-envs-schedule", *schedule)
    assert torch.equal(weights(again), weights(folder))
    assert (again / "evaluation.json").read_text() == (folder / "evaluation.json").read_text()


def iterations(folder):
    return len(read_lines(folder / "metrics.jsonl"))


def ask_for_something(folder, moments):
    """Ask the run for other workers or environments, now and then; whether it was asked."""
    if moments.random() > 0.3:
        return False
    if moments.random() < 0.5:
        asked = {"n_workers": moments.choice([0, 1, 2, "auto", "dynamic"])}
    else:
        asked = {"n_envs": moments.choice([1, 2, 3, 4, 5, 8])}
    try:
        write_request(folder, **asked)
    except UserError:
        return False
    return True
