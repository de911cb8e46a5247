"""Training steps a second, beside Stable-Baselines3 with the same settings: interleaved, in one run, by medians.

    pip install -e '.[bench]' && python benchmarks/ppo_throughput.py

Every measurement is a process of its own on an otherwise idle machine: it trains for a warm-up, then for a fixed number
of rollouts and updates, and reports environment transitions over wall time. The contestants take turns within each
round, so that a machine that changes its speed changes it for all; the ratio of a round is against Stable-Baselines3's
faster vectorizer in that round.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

NUM_ENVS = 8
WARM_UP, COUNTED = 2, 8  # iterations


@dataclass(frozen=True)
class Job:
    """Settings that every contestant trains with; 64x64 tanh, separate networks, no normalization."""

    environment: str  # a name in ENVIRONMENTS
    n_steps: int
    minibatch_size: int
    n_epochs: int


JOBS = {
    "CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job("CartPole-v1", 256, 256, 10),
    "CartPole-v1, 8 x 256, minibatch 64, 10 epochs": Job("CartPole-v1", 256, 64, 10),
    "FastTradingEnv, one asset, 8 x 256, minibatch 256, 10 epochs": Job("trading", 256, 256, 10),
    "a busy step of 300 µs, 8 x 256, minibatch 256, 10 epochs": Job("busy", 256, 256, 10),
}


def _cart_pole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def _trading() -> Any:
    from ml_pipeline.trading.settings import TradingConfig
    from ml_pipeline.trading.task import TradingTask

    return TradingTask(TradingConfig()).train_env_fns(1)[0]()


def _busy() -> Any:
    import gymnasium

    from ml_pipeline.models.rl.core.probe_envs import TimedEnv

    return gymnasium.wrappers.TimeLimit(TimedEnv(busy_s=300e-6), 500)


ENVIRONMENTS: dict[str, Callable[[], Any]] = {"CartPole-v1": _cart_pole, "trading": _trading, "busy": _busy}


def ours(job: Job) -> Callable[[int], None]:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv
    from ml_pipeline.models.rl.networks.policy import Policy

    envs = ParallelEnv([ENVIRONMENTS[job.environment]] * NUM_ENVS, copy=False)
    config = PPOConfig(
        n_steps=job.n_steps,
        minibatch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        normalize_obs=False,
        normalize_rewards=False,
    )
    policy = Policy(envs.single_observation_space, envs.single_action_space, normalize_obs=False)
    trainer = PPOTrainer(envs, policy, config, total_iterations=WARM_UP + COUNTED)

    def train(iterations: int) -> None:
        for _ in range(iterations):
            trainer.train_episode_vectorized()

    return train


def stable_baselines3(vectorizer: str, job: Job) -> Callable[[int], None]:
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)  # faster for it than 2 at this size
    vectorizers = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}
    envs = make_vec_env(ENVIRONMENTS[job.environment], NUM_ENVS, vec_env_cls=vectorizers[vectorizer])
    model = stable_baselines3.PPO(
        "MlpPolicy",
        envs,
        n_steps=job.n_steps,
        batch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        device="cpu",
    )

    def train(iterations: int) -> None:
        model.learn(iterations * NUM_ENVS * job.n_steps, reset_num_timesteps=False)

    return train


CONTESTANTS: dict[str, Callable[[Job], Callable[[int], None]]] = {
    "ours": ours,
    "Stable-Baselines3 DummyVecEnv": lambda job: stable_baselines3("DummyVecEnv", job),
    "Stable-Baselines3 SubprocVecEnv": lambda job: stable_baselines3("SubprocVecEnv", job),
}


def measure(contestant: str, job: Job) -> float:
    """Transitions a second after the warm-up; runs in a process of its own."""
    train = CONTESTANTS[contestant](job)
    train(WARM_UP)
    started = time.perf_counter()
    train(COUNTED)
    return COUNTED * NUM_ENVS * job.n_steps / (time.perf_counter() - started)


def measure_apart(contestant: str, job: Job) -> float:
    request = json.dumps([contestant, asdict(job)])
    command = [sys.executable, __file__, "--measure", request]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def compare(job: Job, rounds: int) -> str:
    rates: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    ratios = []
    for _ in range(rounds):
        for contestant, measured in rates.items():
            measured.append(measure_apart(contestant, job))
        ratios.append(rates["ours"][-1] / max(measured[-1] for name, measured in rates.items() if name != "ours"))
    cells = [f"{statistics.median(measured):,.0f}" for measured in rates.values()]
    spread = f"{statistics.median(ratios):.1f} x ({min(ratios):.1f}-{max(ratios):.1f})"
    return " | ".join([*cells, spread])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contestant takes (default: 5)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        contestant, job = json.loads(arguments.measure)
        print(measure(contestant, Job(**job)))
        return
    print("| job | " + " | ".join(CONTESTANTS) + " | ours / best of theirs, median (range) |")
    print("| --- |" + " --- |" * (len(CONTESTANTS) + 1))
    for name, job in JOBS.items():
        print(f"| {name} | {compare(job, arguments.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
