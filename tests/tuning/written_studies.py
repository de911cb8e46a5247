"""Studies whose trials are written by hand: no trial was trained, so a thousand of them cost little."""

from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.study_files import RETURNS_FILE, trial_folder
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns

SPACE = {
    "learning_rate": FloatDistribution(1e-5, 1e-2, log=True),
    "ent_coef": FloatDistribution(0.0, 0.05),
    "n_epochs": IntDistribution(1, 20),
    "log2_n_steps": IntDistribution(5, 11),
    "one_minus_gamma": FloatDistribution(1e-4, 0.1, log=True),
    "activation": CategoricalDistribution(["tanh", "relu", "elu"]),
}
BEGAN = datetime(2026, 3, 1, 12, 0, 0)


def new_study(name="first", storage=None):
    return optuna.create_study(study_name=name, storage=storage, direction="maximize")


def add_trial(study, value, *, state=TrialState.COMPLETE, params=None, seconds=60, **attributes):
    """Add a trial that has ended, or is RUNNING or WAITING, and return its number."""
    number = len(study.get_trials(deepcopy=False))
    generator = np.random.default_rng(number)
    chosen = params or {
        "learning_rate": float(10 ** generator.uniform(-5, -2)),
        "ent_coef": float(generator.uniform(0, 0.05)),
        "n_epochs": int(generator.integers(1, 21)),
        "activation": str(generator.choice(["tanh", "relu", "elu"])),
    }
    pruned = state == TrialState.PRUNED
    trial = create_trial(
        state=state,
        value=value if state == TrialState.COMPLETE else None,
        params=chosen,
        distributions={name: SPACE[name] for name in chosen},
        intermediate_values={1024: value} if pruned and value is not None else {},
        user_attrs={"folders": [trial_folder(Path(), number).name], "host": "here", **attributes},
    )
    trial.datetime_start = BEGAN + timedelta(seconds=number // 2 * seconds)
    trial.datetime_complete = trial.datetime_start + timedelta(seconds=seconds) if state.is_finished() else None
    study.add_trial(trial)
    return number


def write_returns(folder, *, mean=0.0, seed=0, n_bars=500, deviation=0.01):
    """Validation returns of daily bars, with this mean and deviation."""
    folder.mkdir(parents=True, exist_ok=True)
    returns = np.random.default_rng(seed).normal(mean, deviation, n_bars)
    times = np.datetime64("2024-01-01", "ns") + np.arange(n_bars) * np.timedelta64(1, "D")
    ValidationReturns(times, returns, 252.0).write(folder / RETURNS_FILE)
    return float(np.log1p(returns).sum())


def noise_study(folder, n_trials, *, name="noise", storage=None):
    """Trials that earn nothing but noise; a fifth of them pruned, some failed."""
    study = new_study(name, storage)
    for number in range(n_trials):
        value = write_returns(trial_folder(folder, number), seed=number)
        state = TrialState.PRUNED if number % 5 == 3 else TrialState.FAIL if number % 17 == 16 else TrialState.COMPLETE
        reason = {"reason": "Worker 1 raised ValueError: no <b>bars</b>."} if state == TrialState.FAIL else {}
        reason = {"reason": "pruned at 1,024 steps"} if state == TrialState.PRUNED else reason
        add_trial(study, value, state=state, **reason)
    return study


def untrained_trader(folder, *, n_bars=200, seed=0, policy_seed=0):
    """A run folder with the best.pt of a policy that was never trained, on a random walk beside it."""
    data = folder.parent / f"walk-{seed}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        closes = 100 * np.exp(np.random.default_rng(seed).normal(0, 0.01, n_bars).cumsum())
        days = np.datetime64("2024-01-01") + np.arange(n_bars)
        rows = [f"{day},{close:.6f},1" for day, close in zip(days, closes, strict=True)]
        data.write_text("\n".join(["time,close,volume", *rows]) + "\n")
    config = TrainConfig(trading=TradingConfig(features=("log_return_1",), data=data))
    task = TradingTask(config.trading)
    return _untrained(folder, config, task.evaluation_env(), task.state(), policy_seed)


def untrained_cartpole(folder, *, policy_seed=0):
    """A run folder with the best.pt of a policy that was never trained, for CartPole."""
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(run=RunConfig(env_id="CartPole-v1"))
    return _untrained(folder, config, GymTask.of(config.run).evaluation_env(), {}, policy_seed)


def _untrained(folder, config, env, task_state, policy_seed):
    with closing(env):
        spaces = env.observation_space, env.action_space
        policy = Policy(*spaces, config.ppo, seed=policy_seed, device="cpu")
    saved = {
        "config": flatten(config),
        "task": task_state,
        "trainer": {"policy": policy.state_dict(), "global_step": 0},
    }
    save_checkpoint(folder / "best.pt", saved)
    write_yaml(folder / "config.yaml", flatten(config))
    return folder
