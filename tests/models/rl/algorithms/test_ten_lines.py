"""PPO as a library: training in one line, with hooks, and nothing left behind."""

import io
import subprocess
import sys

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.policies.policy import Policy

CONFIG = PPOConfig(n_steps=8, minibatch_size=16, n_epochs=2, hidden_sizes=(8,))


class Constant(gymnasium.Env):
    """Episodes of two steps that return 2, whatever is done."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 2, False, {}


class Recorder:
    def __init__(self):
        self.metrics = []

    def write(self, metrics, episodes):
        self.metrics.append(metrics)

    def close(self):
        pass


def test_one_call_is_the_trainer_put_together_by_hand():
    policy = PPOTrainer([Constant] * 2, CONFIG, total_timesteps=33, seed=5).train()
    envs = SerialEnv([Constant] * 2)
    by_hand = Policy(envs.single_observation_space, envs.single_action_space, CONFIG, seed=5)
    trainer = PPOTrainer(envs, CONFIG, total_timesteps=48, policy=by_hand, seed=5)  # 33 steps are 3 iterations of 16
    assert trainer.train() is by_hand
    assert trainer.iteration == 3
    for ours, theirs in zip(policy.network.parameters(), by_hand.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("arguments", "is_shown"), [({}, True), ({"progress": False}, False)], ids=str)
def test_training_shows_a_bar_on_a_terminal_unless_told_not_to(monkeypatch, capfd, arguments, is_shown):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    trainer = PPOTrainer([Constant] * 2, CONFIG, total_timesteps=48)
    trainer.train(**arguments)
    trainer.close()
    assert ("48/48" in terminal.getvalue()) == is_shown
    assert ("mean return 2.00" in terminal.getvalue()) == is_shown
    assert capfd.readouterr().out == ""


def test_training_shows_nothing_where_there_is_no_terminal(capfd):
    with PPOTrainer([Constant] * 2, CONFIG, total_timesteps=48) as trainer:
        trainer.train()
    assert capfd.readouterr() == ("", "")


def policy_for(n_numbers=2, n_actions=2):
    return Policy(spaces.Box(-1, 1, (n_numbers,)), spaces.Discrete(n_actions), CONFIG)


NOTEBOOK = """
import functools, signal, time, gymnasium, psutil, torch
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms import trainer_envs
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

trainer_envs.ParallelEnv = functools.partial(ParallelEnv, num_workers=NUM_WORKERS)  # whatever "auto" would measure

def n_workers():  # without the two servers that multiprocessing starts with the first and keeps until the end
    this = psutil.Process()
    servers = {c.pid for c in this.children() if any(s in "".join(c.cmdline()) for s in ("forkserver", "_tracker"))}
    return len({c.pid for c in this.children(recursive=True)} - servers)

class Mine(gymnasium.Wrapper):  # in a cell, not in a module that workers could import
    gain = 2.0
    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward * self.gain, *rest

make_env = lambda: Mine(gymnasium.make("CartPole-v1"))
config = PPOConfig(n_steps=16, minibatch_size=32, n_epochs=1)
seen = []
hook = lambda *_: seen.append(n_workers())
policy = PPOTrainer([make_env] * 4, config, total_timesteps=200).train(after_iteration=hook)
print("trained:", evaluate(make_env(), policy.act, n_episodes=1, seed=0).mean_return > 10)
print("workers:", set(seen))
deadline = time.monotonic() + 60
while n_workers() and time.monotonic() < deadline:
    time.sleep(0.01)
print("left:", n_workers())

envs = ParallelEnv([make_env] * 4, num_workers=2)
step, n_steps = envs.step, 0
def press_stop(actions):  # in the seventh rollout
    global n_steps
    n_steps += 1
    if n_steps == 100:
        signal.raise_signal(signal.SIGINT)
    return step(actions)
envs.step = press_stop
trainer = PPOTrainer(envs, config, total_timesteps=1000)
try:
    trainer.train()
except KeyboardInterrupt:
    print("stopped after", trainer.global_step)
policy = trainer.train()
print("continued until", trainer.iteration, trainer.finished)
alike = PPOTrainer([make_env] * 4, config, total_timesteps=1000).train()
print("as if nothing had been:", all(map(torch.equal, policy.network.parameters(), alike.network.parameters())))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.long), 2])
def test_cells_of_a_notebook(num_workers):
    """What is typed there is in no file; and a trainer closes its environments with the last reference to it."""
    cells = NOTEBOOK.replace("NUM_WORKERS", str(num_workers))
    run = subprocess.run([sys.executable, "-"], input=cells, capture_output=True, text=True, timeout=360, check=False)
    notices = [line for line in run.stderr.splitlines() if not line.startswith("Compiling the update")]  # once, maybe
    assert (notices, run.returncode) == ([], 0)
    assert run.stdout.splitlines() == [
        "trained: True",
        f"workers: {{{num_workers}}}",
        "left: 0",
        "stopped after 400",
        "continued until 16 True",
        "as if nothing had been: True",
    ]


def test_metrics_of_the_users_own_are_written_with_all_others():
    sink = Recorder()
    trainer = PPOTrainer(SerialEnv([Constant] * 2), CONFIG, total_timesteps=16 * 10, sink=sink)
    trainer.train(after_iteration=lambda trainer, statistics: {"own/double": 2.0 * statistics.iteration})
    assert [m["own/double"] for m in sink.metrics] == [2.0 * k for k in range(1, 11)]
    assert "train/value_loss" in sink.metrics[0]


@pytest.mark.parametrize(
    ("envs", "settings", "message"),
    [
        ([Constant], {"total_timesteps": 0}, "total_timesteps must be at least 1, but got 0"),
        ("CartPole-v1", {}, "needs functions that make one environment each, such as .* but got 'CartPole-v1'"),
        (Constant, {}, "needs functions that make one environment each, such as .* but got <class"),
        *(
            ([Constant] * 2, {"device": device}, f"This machine has no device {device}; it has cpu")
            for device in ("gpu", "cuda:99", "cuda:one", "cpu:1")
        ),
        ([Constant] * 2, {"device": "cpu", "policy": policy_for()}, "pass either policy or device, not both"),
        # Two environments' rows of 2 are one of 4: nothing else would notice.
        (SerialEnv([Constant] * 2), {"policy": policy_for(n_numbers=4)}, r"made for observations Box\(.*\(4,\)"),
        (SerialEnv([Constant] * 2), {"policy": policy_for(n_actions=3)}, r"made for actions Discrete\(3\), but those"),
        ([Constant], {}, "minibatch_size must be at most"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(envs, settings, message):
    before = psutil.Process().children()
    with pytest.raises(UserError, match=message):
        PPOTrainer(envs, CONFIG, **settings)
    assert psutil.Process().children() == before
