"""An environment that dies in its constructor or first reset is a sentence, in every command that makes one."""

import os
import signal
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline import enjoy, evaluate_ppo, train_ppo, tune_workers
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.gym_task import reports_mask_at_reset


def raise_it():
    raise RuntimeError("no licence.")


def raise_without_a_word():
    raise AssertionError


DEATHS = {
    "raise": raise_it,
    "raise without a word": raise_without_a_word,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(0),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(3600),
}


class Mortal(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, death="none", where="reset"):
        self.death, self.where = os.environ.get("DEATH", death), where
        self._die("constructor")

    def _die(self, where):
        if self.where == where and self.death != "none":
            DEATHS[self.death]()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._die("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("Mortal-v0", Mortal)
    yield
    del gymnasium.registry["Mortal-v0"]


def told_of(death, where, **arguments):
    env = GymEnv(env_id="Mortal-v0", env_kwargs={"death": death, "where": where})
    with pytest.raises(UserError) as told:
        reports_mask_at_reset(env, seed=0, **arguments)
    return str(told.value)


@pytest.mark.parametrize(("where", "called"), [("constructor", "its constructor"), ("reset", "its first reset()")])
@pytest.mark.parametrize(
    ("death", "how"),
    [
        ("raise", "raises RuntimeError in {}: no licence"),
        ("sys.exit", "ends its process with code 3 in {}"),
        ("os._exit", "ends its process with code 0 in {}"),
        ("segfault", "is killed by SIGSEGV in {}"),
    ],
)
def test_each_death_is_a_sentence(death, how, where, called):
    said = told_of(death, where)
    assert said.startswith(f"Mortal-v0 {how.format(called)}")
    assert "\n" not in said
    if death == "raise":
        assert f"({__file__}, line 2" in said


def test_an_error_without_a_message_is_told_by_its_line():
    said = told_of("raise without a word", "constructor")
    assert said.startswith(
        f"Mortal-v0 raises AssertionError in its constructor: raise AssertionError ({__file__}, line 2"
    )


@pytest.mark.slow
def test_a_reset_that_hangs_is_told_where_time_is_limited():
    first, _, stack = told_of("hang", "reset", step_timeout_s=8.0).partition("\n\n")
    assert first == "Mortal-v0 has not returned from its first reset() within step_timeout_s=8."
    assert "test_first_reset.py" in stack


def test_sys_exit_where_no_process_starts_is_told_as_well(monkeypatch):
    def refuse(begin, **_):
        raise OSError("no more processes")

    monkeypatch.setattr("ml_pipeline.runs.gym_task.run_in_process", refuse)
    assert told_of("sys.exit", "reset") == "Mortal-v0 calls sys.exit(3) in its first reset()."


SMALL = ["--n-steps", "8", "--minibatch-size", "8", "--iterations", "1", "--n-workers", "0"]


@pytest.mark.parametrize("command", ["train", "check-env", "tune-workers", "evaluate", "enjoy"])
def test_every_command_ends_in_the_sentence(command, tmp_path, capsys, monkeypatch):
    if command in {"evaluate", "enjoy"}:
        assert train_ppo.main(["--env-id", "Mortal-v0", "--checkpoint-dir", str(tmp_path), *SMALL]) == 0
    capsys.readouterr()
    monkeypatch.setenv("DEATH", "os._exit")
    main, arguments = {
        "train": (train_ppo.main, ["--env-id", "Mortal-v0", *SMALL]),
        "check-env": (train_ppo.main, ["--env-id", "Mortal-v0", "--check-env"]),
        "tune-workers": (tune_workers.main, ["--env-id", "Mortal-v0"]),
        "evaluate": (evaluate_ppo.main, [str(tmp_path / "best.pt")]),
        "enjoy": (enjoy.main, [str(tmp_path)]),
    }[command]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    err = capsys.readouterr().err
    assert (stopped.value.code, err.count("\n")) == (2, 1)
    assert err.endswith(": Mortal-v0 ends its process with code 0 in its first reset().\n")
