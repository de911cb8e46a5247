"""Runs whose environment is killed or hangs."""

import json
import re
import sys

import gymnasium
import pytest

from ml_pipeline import train_ppo
from tests.training_commands import SMALL

FAILS_ONCE = """
import os, signal, time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class FailsOnce(CartPoleEnv):
    n_steps = 0
    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 40 and first_to_ask():
            self.fail()
        return super().step(action)

def first_to_ask():  # of environments that come to this step at the same moment, one alone
    try:
        Path(__file__).with_name("failed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

class Killed(FailsOnce):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Hanging(FailsOnce):
    def fail(self):
        time.sleep(3600)

gymnasium.register("Killed-v0", Killed)
gymnasium.register("Hanging-v0", Hanging)
"""


@pytest.fixture
def in_failing_env(tmp_path, monkeypatch):
    """Trains for four iterations, 128 steps each environment, in an environment of which one fails in step 40."""
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    options = [*SMALL, "--n-workers", "2", "--iterations", "4", "--eval-episodes", "1"]
    options += ["--checkpoint-dir", str(tmp_path / "run")]
    yield lambda name, *more: train_ppo.main(["--env-id", f"fails_once:{name}", *options, *more])
    sys.modules.pop("fails_once", None)
    for name in ("Killed-v0", "Hanging-v0"):
        gymnasium.registry.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["Killed-v0"], ["Hanging-v0", "--step-timeout-s", "2"]], ids=lambda o: o[0])
def test_a_run_goes_on_with_another_worker_and_counts_it(options, in_failing_env, tmp_path, capsys):
    assert in_failing_env(*options, "--on-worker-failure", "restart") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/n_worker_restarts"] for line in lines] == [0, 1, 1, 1]
    assert lines[-1]["time/global_step"] == 4 * 2 * 32
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "Another replaced it" in line)
    assert re.match(r"Worker \d (\(environment \d\) was killed by SIGKILL|did not finish its step)", told)


@pytest.mark.slow
def test_a_run_whose_environment_hangs_ends_with_one_message(in_failing_env, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert in_failing_env("Hanging-v0", "--step-timeout-s", "2") == 1
    message = capsys.readouterr().err
    assert re.match(r"train_ppo.py: Worker \d did not finish its step within step_timeout_s=2: environment", message)
    assert message.count("train_ppo.py:") == 1
    assert 'fails_once.py", line' in message  # where it is stuck
    assert message.endswith("resume the run in run.\n  python -m ml_pipeline.train_ppo --resume run\n")
