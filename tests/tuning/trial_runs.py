"""Trials of a few steps for the tests of tuning."""

import torch

from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.tuning.config import ObjectiveConfig
from ml_pipeline.tuning.trials.trial_run import TrialRuns

TINY = {"n_envs": 2, "vec_env": "serial", "n_steps": 32, "minibatch_size": 64, "n_epochs": 2, "hidden_sizes": (8,)}
CARTPOLE = {**TINY, "env_id": "CartPole-v1", "eval_episodes": 1, "total_timesteps": 256, "eval_interval": 1}
TRADING = {**TINY, "total_timesteps": 256, "eval_interval": 2, "features": ("log_return_5", "rsi_14")}


class WatchedTrial:
    """Keeps what it is told, and asks to be pruned once it was told so many values."""

    def __init__(self, number=0, *, prune_after=None):
        self.number = number
        self.reports = []
        self._prune_after = prune_after

    def report(self, value, step):
        self.reports.append((step, value))

    def should_prune(self):
        return len(self.reports) == self._prune_after


def trial_runs(folder, base=CARTPOLE, **objective):
    return TrialRuns(base, ObjectiveConfig(**objective), folder)


def ignore(sentence):
    """For what nobody needs to be told."""


def train(runs, trial, settings=None, *, stop=None, **how):
    return runs.train(trial, settings or {}, stop=stop or StopRequest(), say=ignore, **how)


def alone(folder, name, into):
    """The result of the run that `ml-pipeline train` makes of the settings that another one recorded."""
    arguments = ["--config", str(folder / name / "config.yaml"), "--checkpoint-dir", str(into / name)]
    config = parse_train_start(arguments).config
    task = make_task(config)
    task.report = lambda act, folder: "no report"  # which takes longer than the training
    return Run(config, task).train()


def weights(folder, name="latest.pt"):
    network = load_checkpoint(folder / name)["trainer"]["policy"]["network"]
    return torch.cat([weight.flatten() for weight in network.values()]).numpy().tobytes()
