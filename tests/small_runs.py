"""Runs of a few steps, and what tests do with them."""

import torch

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import TrainConfig

PPO = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=2, hidden_sizes=(8,))


def config_of(folder, *, ppo=PPO, **run):
    usual = {"env_id": "CartPole-v1", "n_envs": 2, "vec_env": "serial", "iterations": 4, "eval_episodes": 1}
    return TrainConfig(run=RunConfig(**{**usual, **run}, checkpoint_dir=folder), ppo=ppo)


def trained(folder, **settings):
    config = config_of(folder, **settings)
    return Run(config, make_task(config)).train()


def resumed(folder, **changes):
    config = resumed_config(folder / "latest.pt", changes)
    return Run(config, make_task(config), checkpoint=folder / "latest.pt")


def weights(folder, name="latest.pt"):
    network = load_checkpoint(folder / name)["trainer"]["policy"]["network"]
    return torch.cat([weight.flatten() for weight in network.values()])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class After:
    """A sink that does something after so many iterations."""

    def __init__(self, n_iterations, action):
        self._left, self._action = n_iterations, action
        self.rows, self.closed = [], False

    def write(self, metrics, episodes):
        self.rows.append(metrics)
        if len(self.rows) == self._left:
            self._action()

    def close(self):
        self.closed = True


class Broken(GymTask):
    """Its evaluation raises."""

    def __init__(self, error):
        super().__init__("CartPole-v1", eval_episodes=1, seed=0)
        self._error = error

    def score(self, act):
        raise self._error
