"""Studies whose trials are runs of a few steps, trained once per module, and Optuna's record of them."""

import shutil

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import RETURNS_FILE, trial_folder
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, measure_validation_returns

PPO = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=1, hidden_sizes=(8,), learning_rate=3e-3)


class MarketOfTrial(TradingTask):
    """Its report is of the validation split alone."""

    def report(self, act, folder):
        measure_validation_returns(self, act).write(folder / RETURNS_FILE)
        return "done"


def small_market(path, *, n=400, hint=0.0):
    """A file of hourly bars that wander. hint: how much a column of this name correlates with the next bar's return; 0:
    there is none."""
    generator = np.random.default_rng(7)
    close = 100 * np.exp(np.cumsum(generator.normal(0.0002, 0.004, size=n)))
    times = np.datetime64("2020-01-06", "h") + np.arange(n)
    lines = [
        f"{time}:00:00,{c:.4f},{c * 1.001:.4f},{c * 0.999:.4f},{c:.4f},1" for time, c in zip(times, close, strict=True)
    ]
    header = "time,open,high,low,close,volume"
    if hint:
        following = np.append(np.diff(np.log(close)), 0.0)
        told = hint * following / following.std() + np.sqrt(1 - hint**2) * generator.normal(size=n)
        header, lines = f"{header},feature_hint", [f"{line},{each:.4f}" for line, each in zip(lines, told, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def train_on_market(folder, *, seed=0, **trading):
    run = RunConfig(n_envs=2, vec_env="serial", iterations=2, eval_interval=1, seed=seed, checkpoint_dir=folder)
    config = TrainConfig(run=run, ppo=PPO, trading=TradingConfig(**trading))
    Run(config, MarketOfTrial(config.trading, seed)).train()
    return folder


def new_study(root, name="toy"):
    folder = root / name
    storage = open_storage(None, folder, print)
    return optuna.create_study(study_name=name, storage=storage, direction="maximize"), folder


def add_trial(study, folder, run=None, *, value=0.0, state=TrialState.COMPLETE, returns=None, **attributes):
    """Record a trial whose run folder is a copy of `run`. returns: in place of the run's own validation returns."""
    number = len(study.get_trials(deepcopy=False))
    own = trial_folder(folder, number)
    if run is not None:
        shutil.copytree(run, own)
    if returns is not None:
        returns.write(own / RETURNS_FILE)
    attributes = {"folders": [own.name], "settings": {"gamma": 0.9}, **attributes}
    value = value if state == TrialState.COMPLETE else None
    study.add_trial(create_trial(state=state, value=value, user_attrs=attributes))
    return own


def returns_of(mean, *, n=1000, seed=0, deviation=0.01):
    """Validation returns with this mean, exactly."""
    noise = np.random.default_rng(seed).normal(size=n)
    noise = deviation * (noise - noise.mean()) / noise.std()
    times = np.datetime64("2020-01-01", "ns") + np.arange(n) * np.timedelta64(1, "h")
    return ValidationReturns(times, mean + noise, 6048.0)
