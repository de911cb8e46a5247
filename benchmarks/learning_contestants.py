"""Train a job with this package or with Stable-Baselines3, and score the policy."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.learning_jobs import JOBS, Job
from ml_pipeline.config.settings import Scheduled
from ml_pipeline.models.rl.algorithms.evaluation import evaluate

OURS, THEIRS = "ml_pipeline", "Stable-Baselines3"
EVALUATION_EPISODES, EVALUATION_SEED = 100, 1_000_000
LAST_SHARE = 0.05
N_CURVE = 40  # points of a curve
Episodes = list[tuple[int, float]]
"""(last step, return) of each training episode."""


@dataclass(frozen=True)
class Trained:
    """The training episodes, and functions for deterministic and sampled actions."""

    episodes: Episodes
    act: Callable[[Any], Any]
    draw: Callable[[Any], Any]


@dataclass
class _Curve:
    """A sink that keeps only the returns of episodes."""

    episodes: Episodes = field(default_factory=list)

    def write(self, metrics: Any, episodes: Any) -> None:
        self.episodes += [(episode.global_step, episode.episode_return) for episode in episodes]

    def close(self) -> None:
        """Nothing to close."""


class _Drawing:
    """Samples actions."""

    def __init__(self, act: Any) -> None:
        self._act, self._generator = act, np.random.default_rng(EVALUATION_SEED)
        self.begin_episode = act.begin_episode

    def __call__(self, observation: Any) -> Any:
        return self._act(observation, generator=self._generator)


def train_ours(job: Job, seed: int, total_steps: int) -> Trained:
    """Train with this package."""
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    curve = _Curve()
    envs = [partial(job.make, training=True)] * job.num_envs
    with PPOTrainer(envs, job.config, total_timesteps=total_steps, seed=seed, sink=curve) as trainer:
        act = trainer.train().act
    return Trained(curve.episodes, act, _Drawing(act))


def train_theirs(job: Job, seed: int, total_steps: int) -> Trained:
    """Train with Stable-Baselines3, whose PPO has no memory."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Record(BaseCallback):
        def _on_step(self) -> bool:
            ended = (info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            episodes.extend((self.num_timesteps, float(episode_return)) for episode_return in ended)
            return True

    def schedule(start: Scheduled, kind: str) -> Callable[[float], float]:
        assert not callable(start)
        return (lambda left: start * left) if kind == "linear" else (lambda left: start)

    torch.set_num_threads(1)  # faster for networks of this size, and each run has a core
    episodes: Episodes = []
    config = job.config
    envs: Any = DummyVecEnv([lambda: Monitor(job.make(training=True))] * job.num_envs)
    of_images = len(envs.observation_space.shape) > 1
    if config.normalize_obs or config.normalize_rewards:
        envs = VecNormalize(
            envs, norm_obs=config.normalize_obs, norm_reward=config.normalize_rewards, gamma=config.gamma
        )
    model = PPO(
        "CnnPolicy" if of_images else "MlpPolicy", envs, seed=seed, device="cpu", n_steps=config.n_steps,
        batch_size=config.minibatch_size, n_epochs=config.n_epochs, gamma=config.gamma, gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef, vf_coef=config.vf_coef, max_grad_norm=config.max_grad_norm,
        learning_rate=schedule(config.learning_rate, config.learning_rate_schedule),
        clip_range=schedule(config.clip_range, config.clip_range_schedule),
        policy_kwargs={"net_arch": list(config.hidden_sizes)},
    )  # fmt: skip
    model.set_logger(Logger(None, []))  # its own would make a folder in TMPDIR
    model.learn(total_steps, callback=Record())

    def act(observation: Any, *, deterministic: bool = True) -> Any:
        seen = envs.normalize_obs(observation) if isinstance(envs, VecNormalize) else observation
        return model.predict(seen, deterministic=deterministic)[0]

    torch.manual_seed(EVALUATION_SEED)
    return Trained(episodes, act, partial(act, deterministic=False))


CONTESTANTS: dict[str, Callable[[Job, int, int], Trained]] = {OURS: train_ours, THEIRS: train_theirs}


def run_of(name: str, who: str, seed: int, total_steps: int) -> dict[str, Any]:
    """Train once and return the scores, as a line of the file.

    deterministic, stochastic: mean returns of `EVALUATION_EPISODES` episodes after training, with deterministic
    and with sampled actions. last: mean return of the training episodes that ended in the last `LAST_SHARE` of the
    steps, None if there are none.
    """
    job = JOBS[name]
    began = time.perf_counter()
    trained = CONTESTANTS[who](job, seed, total_steps)
    seconds = time.perf_counter() - began
    with closing(job.make(training=False)) as env:
        deterministic, stochastic = (
            evaluate(env, act, n_episodes=EVALUATION_EPISODES, seed=EVALUATION_SEED).mean_return
            for act in (trained.act, trained.draw)
        )
    return {
        "job": name, "who": who, "seed": seed, "total_steps": total_steps, "deterministic": deterministic,
        "stochastic": stochastic, "last": last_returns(trained.episodes, total_steps), "seconds": round(seconds, 1),
        "curve": curve_of(trained.episodes, total_steps),
    }  # fmt: skip


def last_returns(episodes: Episodes, total_steps: int) -> float | None:
    """The mean return of the episodes that ended in the last steps of a training.

    >>> last_returns([(95, 7.0), (96, 10.0), (100, 20.0)], 100)
    15.0
    """
    last = [episode_return for step, episode_return in episodes if step > (1 - LAST_SHARE) * total_steps]
    return float(np.mean(last)) if last else None


def curve_of(episodes: Episodes, total_steps: int) -> list[tuple[int, float]]:
    """The mean return of the episodes that ended in each of `N_CURVE` equal parts of a training, at the part's end.

    >>> curve_of([(1, 10.0), (20, 20.0), (20, 40.0)], 40)[:1], curve_of([(1, 10.0), (20, 20.0), (20, 40.0)], 40)[1:]
    ([(1, 10.0)], [(20, 30.0)])
    """
    ends = np.linspace(0, total_steps, N_CURVE + 1)[1:]
    parts: dict[int, list[float]] = {}
    for step, episode_return in episodes:
        parts.setdefault(min(N_CURVE - 1, int(np.searchsorted(ends, step))), []).append(episode_return)
    return [(round(ends[part]), float(np.mean(returns))) for part, returns in sorted(parts.items())]
