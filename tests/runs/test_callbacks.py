"""A run calls a user's callbacks, named in its settings or passed in Python, and resumes them with their state."""

import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import train_config
from tests.small_runs import PPO, After, config_of, contents, resumed, trained, weights
from tests.training_commands import REPOSITORY, TRAIN

MODULE = """
    import os, signal

    class Gravity:
        '''Lowers the gravity with the number of episodes, and the learning rate with the score.'''

        episodes, score = 0, 0.0

        def before_rollout(self, trainer):
            trainer.envs.set_attr("gravity", 9.8 - self.episodes / 100)

        def after_episode(self, trainer, episode):
            self.episodes += 1
            return {"own/length": episode.length}

        def after_evaluation(self, trainer, metrics):
            self.score = metrics["eval/score"]
            trainer.change(learning_rate=1e-3 / (1 + self.score))
            return {"own/score": self.score}

        def state_dict(self):
            return {"episodes": self.episodes, "score": self.score}

        def load_state_dict(self, state):
            self.episodes, self.score = state["episodes"], state["score"]

    class Killer:
        def after_rollout(self, trainer):
            if trainer.iteration == 2 and "KILL" in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)

    class Failing:
        def after_rollout(self, trainer):
            if trainer.iteration == 2:
                return {}["worth"]

    class Lengths:
        def __init__(self):
            self.lengths, self.moments = [], []

        def before_rollout(self, trainer):
            assert trainer.envs.get_attr("gravity") == (9.8, 9.8)
            self.moments.append("before_rollout")

        def after_episode(self, trainer, episode):
            assert "TimeLimit.truncated" in episode.info
            self.lengths.append(episode.length)

        def after_rollout(self, trainer):
            self.moments.append("after_rollout")

        def after_iteration(self, trainer, statistics):
            self.moments.append("after_iteration")

        def state_dict(self):
            return {"lengths": self.lengths, "moments": self.moments}

        def load_state_dict(self, state):
            self.lengths, self.moments = state["lengths"], state["moments"]

    class NeedsMore:
        def __init__(self, fee):
            pass

    class Nothing:
        pass

    number = 3
"""
NAME = "my_callbacks:Gravity"


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    """A module of a user with callbacks."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "my_callbacks.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path / "user")
    yield tmp_path / "user"
    sys.modules.pop("my_callbacks", None)


def states(folder):
    return load_checkpoint(folder / "latest.pt")["trainer"]["callbacks"]["states"]


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_callback_of_the_settings_goes_on_where_the_run_was_stopped(tmp_path):
    settings = {"callback": (NAME,), "eval_interval": 2, "n_workers": 2, "vec_env": "parallel"}
    trained(tmp_path / "whole", **settings)
    assert weights(tmp_path / "whole").tolist() != weights_without_callbacks(tmp_path)
    config, stop = config_of(tmp_path / "parts", **settings), StopRequest()
    Run(config, make_task(config), sinks=[After(1, stop.request)], stop=stop).train()
    assert resumed(tmp_path / "parts").train().status == "finished"
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert states(tmp_path / "parts") == states(tmp_path / "whole")
    own = [[row.get(name) for name in ("own/length", "own/score", "eval/score")] for row in rows(tmp_path / "parts")]
    assert own == [
        [row.get(name) for name in ("own/length", "own/score", "eval/score")] for row in rows(tmp_path / "whole")
    ]
    assert [length is not None and score == ours for length, ours, score in own] == [True] * 4
    assert [score is None for _, _, score in own] == [True, False, True, False]


def weights_without_callbacks(tmp_path):
    trained(tmp_path / "without", eval_interval=2)
    return weights(tmp_path / "without").tolist()


class Unhurried(GymTask):
    """Its second evaluation takes until the run is stopped, which it requests, once."""

    def __init__(self, stop):
        super().__init__("CartPole-v1", eval_episodes=1, seed=0)
        self._stop, self._n = stop, 0

    def score(self, act):
        self._n += 1
        if self._n == 2:
            self._stop.request()
        return super().score(act)


def test_an_evaluation_that_a_stop_cut_short_is_told_when_it_is_repeated(tmp_path):
    settings = {"callback": (NAME,), "eval_interval": 1}
    trained(tmp_path / "whole", **settings)
    stop = StopRequest()
    Run(config_of(tmp_path / "parts", **settings), Unhurried(stop), stop=stop).train()
    assert load_checkpoint(tmp_path / "parts" / "latest.pt")["unscored"]
    resumed(tmp_path / "parts").train()
    assert states(tmp_path / "parts") == states(tmp_path / "whole")
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert [row["own/score"] for row in rows(tmp_path / "parts")] == [
        row["eval/score"] for row in rows(tmp_path / "whole")
    ]


def command(folder, user, *more):
    settings = ["--env-id", "CartPole-v1", "--n-envs", "2", "--n-steps", "32", "--minibatch-size", "64"]
    length = [
        "--n-epochs",
        "2",
        "--hidden-sizes",
        "8",
        "--eval-episodes",
        "1",
        "--iterations",
        "4",
        "--vec-env",
        "serial",
    ]
    return [*settings, *length, "--checkpoint-interval", "1", "--checkpoint-dir", str(folder), *more]


@pytest.mark.skipif(sys.platform == "win32", reason="kills by SIGKILL")
def test_a_killed_run_of_the_command_line_goes_on_with_its_callbacks(tmp_path, user, monkeypatch):
    own = ["--callback", NAME, "--callback", "my_callbacks:Killer"]
    monkeypatch.setenv("PYTHONPATH", f"{user}:{REPOSITORY}")
    monkeypatch.setenv("KILL", "1")
    killed = subprocess.run(
        [*TRAIN, *command(tmp_path / "parts", user, *own)], cwd=tmp_path, capture_output=True, timeout=100, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(rows(tmp_path / "parts")) == 2
    monkeypatch.delenv("KILL")
    resumed(tmp_path / "parts").train()
    settings = {"callback": (NAME, "my_callbacks:Killer"), "checkpoint_interval": 1}
    trained(tmp_path / "whole", ppo=PPO, **settings)
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert states(tmp_path / "parts") == states(tmp_path / "whole")


def test_a_callback_that_raises_saves_the_run_and_fails_it(tmp_path, user, capfd):
    own = command(tmp_path / "run", user, "--callback", "my_callbacks:Failing", "--callback", NAME)
    assert train_ppo.main(own) == 1
    failed = "The callback Failing.after_rollout failed in line 35 of my_callbacks.py: KeyError: 'worth'."
    sentence = f"{failed} Correct it, then resume or train again."
    shown = capfd.readouterr().err
    assert f"train_ppo.py: {sentence}\n" in shown
    assert 'return {}["worth"]' in shown  # of the traceback
    assert "--resume" in shown
    assert (read_state(tmp_path / "run").status, read_state(tmp_path / "run").iterations) == ("failed", 3)
    assert sentence in read_state(tmp_path / "run").reason
    assert len(rows(tmp_path / "run")) == 3
    resumed(tmp_path / "run").train()
    trained(tmp_path / "whole", callback=(NAME,), checkpoint_interval=1)
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_callbacks:Gravitation", 'my_callbacks has no "Gravitation"'),
        ("my_callback:Gravity", 'There is no module "my_callback"'),
        ("my_callbacks:NeedsMore", r"my_callbacks:NeedsMore failed in line \d+ of .*: TypeError"),
        ("my_callbacks:number", "callback my_callbacks:number must be a class without arguments, but is a int"),
        ("my_callbacks:Nothing", "A callback must be an object with one of the methods before_rollout, "),
        ("Gravity", 'callback must be module:Class, such as mine:Curriculum, but got "Gravity"'),
    ],
)
def test_a_name_that_is_no_callback_refuses_the_run(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        trained(tmp_path / "run", callback=(name,))
    assert not (tmp_path / "run").exists()


class Counter:
    """Counts iterations, and ends the run after three."""

    def __init__(self):
        self.n = 0

    def after_iteration(self, trainer, statistics):
        self.n += 1
        if self.n == 3:
            trainer.request_stop()
        return {"own/n": self.n}

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


def test_objects_are_passed_in_python_and_again_on_resuming(tmp_path):
    config = config_of(tmp_path / "run")
    result = Run(config, make_task(config), callbacks=[Counter()]).train()
    assert (result.status, result.iterations) == ("finished", 3)
    before = contents(tmp_path / "run")
    refused = resumed(tmp_path / "run")
    with pytest.raises(UserError, match="holds the state of the callback Counter, which is not here; pass it again"):
        refused.train()
    assert contents(tmp_path / "run").items() >= {n: b for n, b in before.items() if n != "state.json"}.items()
    again, counter = resumed(tmp_path / "run"), Counter()
    again.callbacks = (counter,)
    assert again.train().iterations == 4
    assert counter.n == 4


def test_a_callback_that_changed_settings_leave_out_is_gone(tmp_path):
    trained(tmp_path / "run", callback=(NAME,), stop_on_plateau=50)
    assert states(tmp_path / "run").keys() == {"StopOnPlateau", "Gravity"}
    resumed(tmp_path / "run", iterations=5, callback=(), stop_on_plateau=None).train()
    assert "callbacks" not in load_checkpoint(tmp_path / "run" / "latest.pt")["trainer"]


def test_a_callback_that_is_gone_from_its_module_is_said_in_a_sentence(tmp_path, user):
    trained(tmp_path / "run", callback=(NAME,))
    (user / "my_callbacks.py").rename(user / "renamed.py")
    sys.modules.pop("my_callbacks")
    with pytest.raises(UserError, match='There is no module "my_callbacks": run in the folder'):
        resumed(tmp_path / "run", iterations=5).train()


def test_the_plateau_of_an_earlier_version_goes_on(tmp_path):
    trained(tmp_path / "run", stop_on_plateau=50)
    saved = load_checkpoint(tmp_path / "run" / "latest.pt")
    counted = saved["trainer"].pop("callbacks")["states"]["StopOnPlateau"]
    save_checkpoint(tmp_path / "run" / "latest.pt", {**saved, "plateau": {"best": 1e9, "since": 49}})
    assert counted["since"] < 4
    assert resumed(tmp_path / "run", iterations=9).train().iterations == 5


@pytest.mark.parametrize("algorithm", ["A2C", "DQN"])
def test_algorithms_of_stable_baselines3_call_them_and_go_on_with_their_state(tmp_path, algorithm):
    pytest.importorskip("stable_baselines3")
    settings = {"algorithm": algorithm, "n_steps": 32, "callback": ("my_callbacks:Lengths",), "vec_env": "serial"}

    def config(folder):
        run = {"env_id": "CartPole-v1", "n_envs": 2, "iterations": 4, "eval_episodes": 1, "checkpoint_dir": folder}
        return train_config({**run, **settings})

    whole = config(tmp_path / "whole")
    Run(whole, make_task(whole)).train()
    parts, stop = config(tmp_path / "parts"), StopRequest()
    Run(parts, make_task(parts), sinks=[After(2, stop.request)], stop=stop).train()
    resumed(tmp_path / "parts").train()
    assert states(tmp_path / "parts") == states(tmp_path / "whole")
    told = states(tmp_path / "whole")["Lengths"]
    assert told["moments"] == ["before_rollout", "after_rollout", "after_iteration"] * 4
    lines = (tmp_path / "whole" / "monitor.csv").read_text().splitlines()[2:]
    assert told["lengths"] == [int(line.split(",")[1]) for line in lines]


def test_fees_of_the_example_rise_with_the_score(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    names = ("examples.callbacks:RisingFees", "examples.callbacks:NetWorth")
    ppo = PPOConfig(n_steps=128, minibatch_size=64, n_epochs=1, hidden_sizes=(8,))
    config = config_of(tmp_path / "run", ppo=ppo, env_id=None, callback=names, eval_interval=1, iterations=5)
    config = replace(config, trading=replace(config.trading, episode_length=100))
    task, scores = make_task(config), iter([-0.01, 0.02, 0.01, 0.5, 0.0])
    task.score, task.report = lambda act: next(scores), lambda act, folder: "Done."
    seen = []
    observer = SimpleNamespace(after_rollout=lambda trainer: seen.append(trainer.envs.get_attr("fee_bps")))
    Run(config, task, callbacks=[observer]).train()
    assert seen == [(fee, fee) for fee in (0.0, 0.0, 2.0, 2.0, 5.0)]
    assert [row["mine/fee_bps"] for row in rows(tmp_path / "run")] == [0.0, 2.0, 2.0, 5.0, 5.0]
    assert all(5_000 < row["mine/net_worth"] < 20_000 for row in rows(tmp_path / "run"))


def test_the_goal_of_the_example_moves_away_with_success(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    ppo = PPOConfig(n_steps=64, minibatch_size=64, n_epochs=4, hidden_sizes=(16,), learning_rate=1e-2)
    settings = {"env_id": "examples.callbacks:Goal-v0", "n_envs": 4, "callback": ("examples.callbacks:Farther",)}
    trained(tmp_path / "run", ppo=ppo, iterations=8, **settings)
    moved = np.cumsum([row["mine/success"] >= 0.9 for row in rows(tmp_path / "run")])
    assert [row["mine/distance"] for row in rows(tmp_path / "run")] == (3 + moved).tolist()
    assert moved[-1] >= 1
