"""The commands of training as tests call them, and what tests of them share."""

import contextlib
import csv
import io
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ml_pipeline import evaluate_ppo, train_ppo

REPOSITORY = Path(__file__).resolve().parent.parent
TRAIN = [sys.executable, "-m", "ml_pipeline.train_ppo"]
SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "64", "--n-epochs", "2", "--hidden-sizes", "8"]
# Episodes, not the market: its report at the end takes longer than the whole training.
EPISODES = ["--env-id", "CartPole-v1", "--eval-episodes", "2"]


def run(command, *, cwd=REPOSITORY, expect=0):
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == expect, done.stderr + done.stdout
    return done


class Output(NamedTuple):
    stdout: str
    stderr: str


def run_here(main, *arguments, expect=0):
    """What a command prints that is called in this process, which has imported torch: a new one takes seconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
    assert code == expect, err.getvalue() + out.getvalue()
    return Output(out.getvalue(), err.getvalue())


train, evaluate = (partial(run_here, command.main) for command in (train_ppo, evaluate_ppo))


def weights_in(checkpoint):
    network = torch.load(checkpoint, weights_only=True)["trainer"]["policy"]["network"]
    return torch.cat([weight.flatten() for weight in network.values()])


def contents(folder):
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write_prices(path, n_days):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["date", "open", "high", "low", "close", "volume"])
        walk = np.random.default_rng(0).normal(0, 0.01, n_days).cumsum()  # nothing in it foretells returns
        for day, price in enumerate(np.round(100 * np.exp(walk), 4)):
            rows.writerow([f"{2000 + day // 28 // 12}-{day // 28 % 12 + 1:02}-{day % 28 + 1:02}", *[price] * 4, 5])
