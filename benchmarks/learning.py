"""Learning curves beside Stable-Baselines3 with the same settings: a table, a picture, and every run on a line.

    pip install -e '.[learn]' && python benchmarks/learning.py

Hours of work, which may be stopped at any time: each finished run is a line of runs.jsonl, and another call goes on
with those that are missing. A run's score is the mean return of 20 episodes, played by the trained policy without
chance in an environment of their own. Over the seeds of a job the table gives the interquartile mean with its 95 %
bootstrap interval, and mean and deviation.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.evaluation import evaluate

OURS, THEIRS = "ml_pipeline", "Stable-Baselines3"
EVALUATION_EPISODES, EVALUATION_SEED = 20, 1_000_000
N_CURVE = 40  # points of a curve
Episodes = list[tuple[int, float]]
"""Of each training episode the step in which it ended, and its return."""


@dataclass(frozen=True)
class Job:
    """What both train with; `normalize` is of observations and rewards."""

    make: Callable[[], gymnasium.Env]
    total_steps: int
    n_seeds: int
    num_envs: int
    config: PPOConfig
    reference: str = "-"


def _settings(*, normalize: bool = False, **settings: Any) -> PPOConfig:
    return PPOConfig(normalize_obs=normalize, normalize_rewards=normalize, **settings)


class PositionsOnly(gymnasium.ObservationWrapper):
    """CartPole without its velocities: where it goes is known only to who remembers where it was."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]])

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


_CARTPOLE: dict[str, Any] = {
    "n_steps": 32, "minibatch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3,
    "learning_rate_schedule": "linear", "clip_range_schedule": "linear",
}  # fmt: skip
_MUJOCO = _settings(
    normalize=True, n_steps=2048, minibatch_size=64, n_epochs=10, learning_rate=3e-4, learning_rate_schedule="linear"
)


def _named(env_id: str) -> Callable[[], gymnasium.Env]:
    return partial(gymnasium.make, env_id)


# Settings and references: rl-baselines3-zoo (one run) and, of MuJoCo (v4, three seeds, by the return in training),
# CleanRL. The zoo's gSDE, for MountainCarContinuous and Pendulum, neither of the two uses here.
JOBS = {
    "CartPole-v1": Job(_named("CartPole-v1"), 100_000, 5, 8, _settings(**_CARTPOLE), "500"),
    "Acrobot-v1": Job(
        _named("Acrobot-v1"), 1_000_000, 5, 16,
        _settings(normalize=True, n_steps=256, minibatch_size=64, n_epochs=4, gae_lambda=0.94), "-73.5",
    ),
    "LunarLander-v3": Job(
        _named("LunarLander-v3"), 1_000_000, 5, 16,
        _settings(n_steps=1024, minibatch_size=64, n_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01), "242 (v2)",
    ),
    "MountainCarContinuous-v0": Job(
        _named("MountainCarContinuous-v0"), 300_000, 5, 4,
        _settings(normalize=True, n_steps=512, minibatch_size=256, n_epochs=10, gamma=0.9999, gae_lambda=0.9),
    ),
    "Pendulum-v1": Job(
        _named("Pendulum-v1"), 300_000, 5, 4,
        _settings(n_steps=1024, minibatch_size=64, n_epochs=10, gamma=0.9, learning_rate=1e-3),
    ),
    "HalfCheetah-v5": Job(_named("HalfCheetah-v5"), 1_000_000, 3, 1, _MUJOCO, "1443 ± 46 (v4)"),
    "Hopper-v5": Job(_named("Hopper-v5"), 1_000_000, 3, 1, _MUJOCO, "2383 ± 272 (v4)"),
    "CartPole-v1 without velocities, LSTM": Job(
        lambda: PositionsOnly(gymnasium.make("CartPole-v1")), 100_000, 5, 8,
        _settings(normalize=True, memory="lstm", **_CARTPOLE), "500; about 50 without memory",
    ),
}  # fmt: skip


@dataclass
class _Curve:
    """A sink that keeps nothing but the returns of episodes."""

    episodes: Episodes = field(default_factory=list)

    def write(self, metrics: Any, episodes: Any) -> None:
        self.episodes += [(episode.global_step, episode.episode_return) for episode in episodes]

    def close(self) -> None:
        """Nothing is open."""


def train_ours(job: Job, seed: int, total_steps: int) -> tuple[Episodes, Callable[[Any], Any]]:
    """Its training episodes and its actor."""
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    curve = _Curve()
    with PPOTrainer(
        [job.make] * job.num_envs, job.config, total_timesteps=total_steps, seed=seed, sink=curve
    ) as trainer:
        return curve.episodes, trainer.train().act


def train_theirs(job: Job, seed: int, total_steps: int) -> tuple[Episodes, Callable[[Any], Any]]:
    """The same of Stable-Baselines3, whose PPO has no memory."""
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

    def schedule(start: float, kind: str) -> Callable[[float], float]:
        return (lambda left: start * left) if kind == "linear" else (lambda left: start)

    torch.set_num_threads(1)  # faster for networks of this size
    episodes: Episodes = []
    config = job.config
    envs: Any = DummyVecEnv([lambda: Monitor(job.make())] * job.num_envs)
    if config.normalize_obs:
        envs = VecNormalize(envs, gamma=config.gamma)
    model = PPO(
        "MlpPolicy", envs, seed=seed, device="cpu", n_steps=config.n_steps, batch_size=config.minibatch_size,
        n_epochs=config.n_epochs, gamma=config.gamma, gae_lambda=config.gae_lambda, ent_coef=config.ent_coef,
        vf_coef=config.vf_coef, max_grad_norm=config.max_grad_norm,
        learning_rate=schedule(config.learning_rate, config.learning_rate_schedule),
        clip_range=schedule(config.clip_range, config.clip_range_schedule),
        policy_kwargs={"net_arch": list(config.hidden_sizes)},
    )  # fmt: skip
    model.set_logger(Logger(None, []))  # its own would make a folder in TMPDIR
    model.learn(total_steps, callback=Record())

    def act(observation: Any) -> Any:
        seen = envs.normalize_obs(observation) if isinstance(envs, VecNormalize) else observation
        return model.predict(seen, deterministic=True)[0]

    return episodes, act


CONTESTANTS = {OURS: train_ours, THEIRS: train_theirs}


def run_of(name: str, who: str, seed: int, total_steps: int) -> dict[str, Any]:
    """One training and its evaluation, as a line of the file."""
    job = JOBS[name]
    began = time.perf_counter()
    episodes, act = CONTESTANTS[who](job, seed, total_steps)
    seconds = time.perf_counter() - began
    with closing(job.make()) as env:
        score = evaluate(env, act, n_episodes=EVALUATION_EPISODES, seed=EVALUATION_SEED).mean_return
    return {
        "job": name, "who": who, "seed": seed, "total_steps": total_steps, "score": score,
        "seconds": round(seconds, 1), "curve": curve_of(episodes, total_steps),
    }  # fmt: skip


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


def interquartile_mean(scores: Any) -> Any:
    """Mean of the middle half along the last axis, the quarters at both ends rounded down and left out.

    Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice, arXiv:2108.13264.

    >>> float(interquartile_mean([100.0, 1.0, 2.0, 3.0, -50.0])), float(interquartile_mean([1.0, 2.0, 6.0]))
    (2.0, 3.0)
    """
    ordered = np.sort(np.asarray(scores), axis=-1)
    n_left_out = ordered.shape[-1] // 4
    return ordered[..., n_left_out : ordered.shape[-1] - n_left_out].mean(axis=-1)


def bootstrap_interval(scores: list[float]) -> tuple[float, float]:
    """95 % of the interquartile means of 10,000 samples drawn with replacement.

    >>> bootstrap_interval([3.0, 3.0, 3.0])
    (3.0, 3.0)
    """
    drawn = np.random.default_rng(0).choice(scores, size=(10_000, len(scores)))
    low, high = np.percentile(interquartile_mean(drawn), [2.5, 97.5])
    return float(low), float(high)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Finished runs; a last line that was cut short is none."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def table(runs: list[dict[str, Any]]) -> str:
    """In Markdown, one line a job that has been begun."""
    heads = ["environment", "steps", "seeds", *(f"{who}: IQM [95 %], mean ± deviation" for who in CONTESTANTS)]
    lines = [" | ".join(["", *heads, "published", ""]).strip(), "| " + "--- | " * (len(heads) + 1)]
    for name, job in JOBS.items():
        of_job = [run for run in runs if run["job"] == name]
        if of_job:
            seeds = "/".join(str(sum(run["who"] == who for run in of_job)) for who in CONTESTANTS)
            steps = sorted({run["total_steps"] for run in of_job})
            cells = [_summary([run["score"] for run in of_job if run["who"] == who]) for who in CONTESTANTS]
            lines.append(f"| {' | '.join([name, ', '.join(f'{n:,}' for n in steps), seeds, *cells, job.reference])} |")
    return "\n".join(line.strip() for line in lines) + "\n"


def _summary(scores: list[float]) -> str:
    if not scores:
        return "-"
    low, high = bootstrap_interval(scores)
    spread = f"{np.mean(scores):,.1f} ± {np.std(scores, ddof=1):,.1f}" if len(scores) > 1 else f"{scores[0]:,.1f}"
    return f"{interquartile_mean(scores):,.1f} [{low:,.1f}, {high:,.1f}], {spread}"


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """A panel a job: every run as a thin line, the mean of each contestant's as a thick one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in JOBS if any(run["job"] == name for run in runs)]
    n_rows = -(-len(names) // 2)
    figure = Figure(figsize=(11, 3 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(n_rows, 2, place)
        axes.set_title(name)
        for who, color in zip(CONTESTANTS, ("tab:blue", "tab:orange"), strict=True):
            curves = [run["curve"] for run in runs if (run["job"], run["who"]) == (name, who) and run["curve"]]
            at: dict[int, list[float]] = {}
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), color=color, linewidth=0.5, alpha=0.5)
                for step, value in curve:
                    at.setdefault(step, []).append(value)
            if at:
                axes.plot(sorted(at), [np.mean(at[step]) for step in sorted(at)], color=color, label=who)
        axes.set_ylabel("return in training")
        axes.legend()
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS, metavar="JOB", help="all by default")
    parser.add_argument("--seeds", type=int, help="in place of the 5 or 3 of each job")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps to train for, for a try")
    parser.add_argument("--output", type=Path, default=Path("docs/learning"), help="folder (default: docs/learning)")
    arguments = parser.parse_args(argv)
    learn(arguments.jobs, arguments.seeds, arguments.scale, arguments.output)


def learn(names: Sequence[str], n_seeds: int | None, scale: float, output: Path) -> None:
    """Do the runs that are missing, then draw and print all of this scale."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / "runs.jsonl"
    runs = read_runs(path)
    path.write_text("".join(f"{json.dumps(run)}\n" for run in runs))  # less what was cut short
    steps_of = {name: max(1, round(job.total_steps * scale)) for name, job in JOBS.items()}
    runs = [run for run in runs if run["total_steps"] == steps_of[run["job"]]]
    finished = {(run["job"], run["seed"], run["who"]) for run in runs}
    for name in names:
        for seed, who in itertools.product(range(n_seeds or JOBS[name].n_seeds), CONTESTANTS):
            if (name, seed, who) not in finished:
                run = run_of(name, who, seed, steps_of[name])
                runs.append(run)
                with path.open("a") as file:
                    file.write(f"{json.dumps(run)}\n")
                print(f"{name}, {who}, seed {seed}: {run['score']:,.1f} after {run['seconds']:,.0f} s", flush=True)
    (output / "table.md").write_text(table(runs))
    draw(runs, output / "curves.png")
    print(table(runs))


if __name__ == "__main__":
    main()
