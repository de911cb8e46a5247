"""Training steps a second, beside Stable-Baselines3 and plain torch with the same settings: interleaved, in one run.

    pip install -e '.[bench]' && python benchmarks/ppo_throughput.py [--only cheetah]

Every measurement is a process of its own on an otherwise idle machine: it trains for a warm-up, then for a fixed number
of rollouts and updates, and reports environment transitions over wall time. CartPole warms up until its episodes are
long: the many resets of the first iterations are not what a user waits for. A whole program is timed from start to end,
imports included; ours then also evaluates and writes its report. The contestants take turns within each
round, so that a machine that changes its speed changes it for all; the ratio of a round is against Stable-Baselines3's
faster contestant in that round, and, where a job has a limit, against that. Figures are medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from throughput_envs import in_parts, maskable, masked, pendulum, two_choices

WARM_UP, COUNTED = 2, 8  # iterations
UNTIL_LONG = 40  # iterations of 2,048 transitions, until CartPole's episodes take some hundred steps
BUSY_S = 300e-6


@dataclass(frozen=True)
class Job:
    """Settings that every contestant trains with; 64x64 tanh, separate networks.

    memory: units of an LSTM below each network, 0 for none. normalizes: observations and rewards, by running statistics
    (VecNormalize). squashes: ours keeps actions within their bounds by tanh; Stable-Baselines3's PPO, which does that
    with gSDE alone, clips. warm_up: iterations before those that count. total_timesteps: of a whole program.
    Frames go through NatureCNN below both networks; Stable-Baselines3 has no hidden layers above it.
    """

    environment: str  # a name in ENVIRONMENTS
    num_envs: int
    n_steps: int
    minibatch_size: int
    n_epochs: int
    contestants: tuple[str, ...] = ("ours", "Stable-Baselines3 DummyVecEnv", "Stable-Baselines3 SubprocVecEnv", "torch")
    memory: int = 0
    normalizes: bool = False
    squashes: bool = False
    warm_up: int = WARM_UP
    total_timesteps: int | None = None


_STABLE_BASELINES3 = ("ours", "Stable-Baselines3 DummyVecEnv", "Stable-Baselines3 SubprocVecEnv")
_IN_PROCESS = ("ours", "Stable-Baselines3 DummyVecEnv")

JOBS = {
    "CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job("CartPole-v1", 8, 256, 256, 10, warm_up=UNTIL_LONG),
    "CartPole-v1, 8 x 256, minibatch 64, 10 epochs": Job("CartPole-v1", 8, 256, 64, 10, warm_up=UNTIL_LONG),
    "defaults: CartPole-v1 with normalization, 8 x 256, minibatch 256, 10 epochs": Job(
        "CartPole-v1", 8, 256, 256, 10, _STABLE_BASELINES3, normalizes=True, warm_up=UNTIL_LONG
    ),
    "defaults, whole program: CartPole-v1 with normalization, 8 environments, 327,680 steps": Job(
        "CartPole-v1", 8, 256, 256, 10, _IN_PROCESS, normalizes=True, total_timesteps=327_680
    ),
    "masks: CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "masked", 8, 256, 256, 10, ("ours", "Stable-Baselines3 MaskablePPO of sb3-contrib"), warm_up=UNTIL_LONG
    ),
    "squashed actions: Pendulum-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "Pendulum-v1", 8, 256, 256, 10, _STABLE_BASELINES3, squashes=True
    ),
    "MultiDiscrete actions: CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "two choices", 8, 256, 256, 10, _STABLE_BASELINES3, warm_up=UNTIL_LONG
    ),
    "Dict observations: CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "in parts", 8, 256, 256, 10, _STABLE_BASELINES3, warm_up=UNTIL_LONG
    ),
    "FastTradingEnv, one asset, 16 features, 8 x 256, minibatch 256, 10 epochs": Job("trading", 8, 256, 256, 10),
    "a busy step of 300 µs, 8 x 256, minibatch 256, 10 epochs": Job(
        "busy", 8, 256, 256, 10, ("ours", "Stable-Baselines3 SubprocVecEnv", "limit: steps on all cores")
    ),
    "BatchedTradingEnv, 1,024 x 32, minibatch 4,096, 4 epochs": Job(
        "batched", 1024, 32, 4096, 4, ("ours", "limit: its matrix products")
    ),
    "HalfCheetah-v5, 1 x 2,048, minibatch 64, 10 epochs": Job("HalfCheetah-v5", 1, 2048, 64, 10),
    "memory: CartPole-v1 without velocities, LSTM 64, 8 x 128, minibatch 128, 10 epochs": Job(
        "remembered",
        8,
        128,
        128,
        10,
        ("ours", "Stable-Baselines3 RecurrentPPO of sb3-contrib"),
        memory=64,
        warm_up=UNTIL_LONG,
    ),
    "images: 84x84x4 frames, 8 x 64, minibatch 128, 4 epochs": Job(
        "frames",
        8,
        64,
        128,
        4,
        (
            "ours",
            "ours in bfloat16",
            "Stable-Baselines3 CnnPolicy",
            "Stable-Baselines3 CnnPolicy, one thread",
            "limit: its convolutions",
            "bfloat16 limit: its convolutions",
        ),
    ),
}


def _cart_pole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def _without_velocities() -> Any:
    from learning_jobs import PositionsOnly

    return PositionsOnly(_cart_pole())


def _half_cheetah() -> Any:
    import gymnasium

    return gymnasium.make("HalfCheetah-v5")


def _trading() -> Any:
    from trading_envs import market

    from ml_pipeline.trading.accounts.rules import TradingRules
    from ml_pipeline.trading.envs.fast import FastTradingEnv

    return FastTradingEnv(market(1, 16), TradingRules("discrete"), episode_length=256)


def _batched(num_envs: int) -> Any:
    from trading_envs import market

    from ml_pipeline.trading.accounts.rules import TradingRules
    from ml_pipeline.trading.envs.batched import BatchedTradingEnv

    return BatchedTradingEnv(market(1, 16), num_envs, TradingRules("discrete"), episode_length=256)


def _busy() -> Any:
    import gymnasium

    from ml_pipeline.models.rl.core.probe_envs import TimedEnv

    return gymnasium.wrappers.TimeLimit(TimedEnv(busy_s=BUSY_S), 500)


def _frames() -> Any:
    """Frames of noise, which take no time to make, in episodes of 200 steps."""
    import gymnasium
    import numpy as np

    class Frames(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        action_space = gymnasium.spaces.Discrete(4)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self._t, self._frames = 0, self.np_random.integers(0, 256, (16, 84, 84, 4), np.uint8)
            return self._frames[0], {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self._t += 1
            return self._frames[self._t % 16], float(action == self._t % 4), self._t == 200, False, {}

    return Frames()


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "CartPole-v1": _cart_pole,
    "remembered": _without_velocities,
    "HalfCheetah-v5": _half_cheetah,
    "frames": _frames,
    "trading": _trading,
    "busy": _busy,
    "masked": masked,
    "two choices": two_choices,
    "in parts": in_parts,
    "Pendulum-v1": pendulum,
}


def ours(job: Job, **settings: Any) -> Callable[[int], None]:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv

    envs: Any
    if job.environment == "batched":
        envs = _batched(job.num_envs)
    else:
        envs = ParallelEnv([ENVIRONMENTS[job.environment]] * job.num_envs, copy=False)
    config = PPOConfig(
        n_steps=job.n_steps,
        minibatch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        normalize_obs=job.normalizes,
        normalize_rewards=job.normalizes,
        squash_actions=job.squashes,
        **({"memory": "lstm", "memory_size": job.memory} if job.memory else {}),
        **settings,
    )
    trainer = PPOTrainer(envs, config)

    def train(iterations: int) -> None:
        for _ in range(iterations):
            trainer.train_episode_vectorized()

    return train


def stable_baselines3(vectorizer: str, job: Job) -> Callable[[int], None]:
    import stable_baselines3
    from gymnasium.spaces import Dict
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    vectorizers = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}
    envs = make_vec_env(ENVIRONMENTS[job.environment], job.num_envs, vec_env_cls=vectorizers[vectorizer])
    if job.normalizes:
        envs = VecNormalize(envs)
    policy = "MultiInputPolicy" if isinstance(envs.observation_space, Dict) else "MlpPolicy"
    return of_theirs(stable_baselines3.PPO, policy, envs, job)


def recurrent_ppo(job: Job) -> Callable[[int], None]:
    """It takes samples in the order of time, and pads the episodes of a minibatch to the longest."""
    import sb3_contrib
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(ENVIRONMENTS[job.environment], job.num_envs)
    layers = {"lstm_hidden_size": job.memory}
    return of_theirs(sb3_contrib.RecurrentPPO, "MlpLstmPolicy", envs, job, policy_kwargs=layers)


def maskable_ppo(job: Job) -> Callable[[int], None]:
    import sb3_contrib
    from stable_baselines3.common.env_util import make_vec_env

    return of_theirs(sb3_contrib.MaskablePPO, "MlpPolicy", make_vec_env(maskable, job.num_envs), job)


def cnn_policy(job: Job, n_threads: int) -> Callable[[int], None]:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(ENVIRONMENTS[job.environment], job.num_envs)
    return of_theirs(stable_baselines3.PPO, "CnnPolicy", envs, job, n_threads=n_threads)


def of_theirs(
    algorithm: Any, policy: str, envs: Any, job: Job, *, n_threads: int = 1, **settings: Any
) -> Callable[[int], None]:
    """A training by Stable-Baselines3 or sb3-contrib; one thread is faster for their perceptrons than two."""
    import torch

    torch.set_num_threads(n_threads)
    model = algorithm(
        policy,
        envs,
        n_steps=job.n_steps,
        batch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        device="cpu",
        **settings,
    )

    def train(iterations: int) -> None:
        model.learn(iterations * job.num_envs * job.n_steps, reset_num_timesteps=False)

    return train


def torch_alone(job: Job) -> Callable[[int], None]:
    from plain_torch_ppo import plain_torch

    return plain_torch(
        ENVIRONMENTS[job.environment],
        num_envs=job.num_envs,
        n_steps=job.n_steps,
        minibatch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
    )


def steps_on_all_cores(job: Job) -> Callable[[int], None]:
    """As long as the environments' own steps take, shared by all cores without loss."""
    from ml_pipeline.runtime.cores import usable_cores

    return lambda iterations: time.sleep(iterations * job.num_envs * job.n_steps * BUSY_S / usable_cores())


def matrix_products(job: Job) -> Callable[[int], None]:
    """The products of acting, values and learning, for 17 observations, two networks of 64 x 64 and 3 + 1 outputs.

    In torch with all cores, into memory that is there: the first layer, the second, and the way back through both.
    """
    import torch

    def product(m: int, k: int, n: int) -> Callable[[], Any]:
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
        return lambda: torch.mm(a, b, out=c)

    def layers(b: int) -> list[Callable[[], Any]]:
        return [product(b, 17, 64), product(b, 64, 64), product(b, 64, 3)]

    n_samples, b = job.num_envs * job.n_steps, job.minibatch_size
    act, forward = layers(job.num_envs), layers(b)
    back = [product(17, b, 64), product(64, b, 64), product(64, b, 3), product(b, 64, 64), product(b, 3, 64)]

    def train(iterations: int) -> None:
        for _ in range(iterations):
            for run in act * job.n_steps:
                run()
            for _ in range(2 * n_samples // b):  # of both networks: once for all samples, then in every epoch
                for run in forward + (forward + back) * job.n_epochs:
                    run()

    return train


def convolutions(job: Job, dtype: str) -> Callable[[int], None]:
    """The three convolutions of NatureCNN in acting and learning, without all else: channels last, on all cores.

    Forward of every frame, and forward and backward of every minibatch, without the gradient by the frames.
    """
    import torch

    def case(n: int) -> list[tuple[Any, Any, Any, int]]:
        sizes = [(4, 84, 32, 8, 4), (32, 20, 64, 4, 2), (64, 9, 64, 3, 1)]  # channels, side, filters, kernel, stride
        layers = []
        for channels, side, filters, kernel, stride in sizes:
            images, weights, gradients = (
                torch.randn(shape).to(getattr(torch, dtype), memory_format=torch.channels_last)
                for shape in (
                    (n, channels, side, side),
                    (filters, channels, kernel, kernel),
                    (n, filters, (side - kernel) // stride + 1, (side - kernel) // stride + 1),
                )
            )
            layers.append((images, weights, gradients, stride))
        return layers

    acting, learning = case(job.num_envs), case(job.minibatch_size)
    n_minibatches = job.n_epochs * job.num_envs * job.n_steps // job.minibatch_size

    def forward(layers: list[tuple[Any, Any, Any, int]]) -> None:
        for images, weights, _, stride in layers:
            torch.conv2d(images, weights, None, stride)

    def backward(layers: list[tuple[Any, Any, Any, int]]) -> None:
        for i, (images, weights, gradients, stride) in enumerate(layers):
            of_both = [i > 0, True, False]  # by images and by weights
            torch.ops.aten.convolution_backward(
                gradients, images, weights, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, of_both
            )

    @torch.inference_mode()
    def train(iterations: int) -> None:
        for _ in range(iterations):
            for _ in range(job.n_steps):
                forward(acting)
            for _ in range(n_minibatches):
                forward(learning)
                backward(learning)

    return train


CONTESTANTS: dict[str, Callable[[Job], Callable[[int], None]]] = {
    "ours": ours,
    "ours in bfloat16": lambda job: ours(job, bfloat16=True),
    "Stable-Baselines3 DummyVecEnv": lambda job: stable_baselines3("DummyVecEnv", job),
    "Stable-Baselines3 SubprocVecEnv": lambda job: stable_baselines3("SubprocVecEnv", job),
    "Stable-Baselines3 RecurrentPPO of sb3-contrib": recurrent_ppo,
    "Stable-Baselines3 MaskablePPO of sb3-contrib": maskable_ppo,
    "Stable-Baselines3 CnnPolicy": lambda job: cnn_policy(job, n_threads=usable_threads()),
    "Stable-Baselines3 CnnPolicy, one thread": lambda job: cnn_policy(job, n_threads=1),
    "torch": torch_alone,
    "limit: steps on all cores": steps_on_all_cores,
    "limit: its matrix products": matrix_products,
    "limit: its convolutions": lambda job: convolutions(job, "float32"),
    "bfloat16 limit: its convolutions": lambda job: convolutions(job, "bfloat16"),
}


def usable_threads() -> int:
    import torch

    return torch.get_num_threads()  # torch's own choice: one per core


def measure(contestant: str, job: Job) -> float:
    """Transitions a second after the warm-up; runs in a process of its own."""
    train = CONTESTANTS[contestant](job)
    train(job.warm_up)
    started = time.perf_counter()
    train(COUNTED)
    return COUNTED * job.num_envs * job.n_steps / (time.perf_counter() - started)


COMPARISONS = (
    ("ours", "Stable-Baselines3", "x"),
    ("ours", "limit", "of the limit"),
    ("ours in bfloat16", "Stable-Baselines3", "x"),
    ("ours in bfloat16", "bfloat16 limit", "of the limit"),
)
"""Who is compared with the fastest of those whose names begin so, and the unit of the ratio."""


def measure_apart(contestant: str, job: Job) -> float:
    request = json.dumps([contestant, asdict(job)])
    if job.total_timesteps is not None:
        return job.total_timesteps / program_s(contestant, job, request)
    command = [sys.executable, __file__, "--measure", request]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def program_s(contestant: str, job: Job, request: str) -> float:
    """What a whole training takes as a program of its own, with our command or with a script for the others.

    Python keeps the bytecode of modules, as it does for users: a first round may take longer.
    """
    command = [sys.executable, __file__, "--train", request]
    if contestant == "ours":
        sizes = {"n-envs": job.num_envs, "total-timesteps": job.total_timesteps, "n-steps": job.n_steps}
        learning = {"minibatch-size": job.minibatch_size, "n-epochs": job.n_epochs}
        flags = [f"--{name}={value}" for name, value in {"env-id": job.environment, **sizes, **learning}.items()]
        command = [sys.executable, "-m", "ml_pipeline.train_ppo", *flags]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=True)
        return time.perf_counter() - began


def train_whole(contestant: str, job: Job) -> None:
    assert job.total_timesteps is not None
    CONTESTANTS[contestant](job)(job.total_timesteps // (job.num_envs * job.n_steps))


def compare(job: Job, rounds: int) -> str:
    """The rates of all contestants, and how ours stands to Stable-Baselines3's better one and to the limit."""
    rates: dict[str, list[float]] = {contestant: [] for contestant in job.contestants}
    for _ in range(rounds):
        for contestant, measured in rates.items():
            measured.append(measure_apart(contestant, job))
    cells = [f"{name} {statistics.median(measured):,.0f}" for name, measured in rates.items()]
    for own, kind, unit in COMPARISONS:
        others = [measured for name, measured in rates.items() if name.startswith(kind)]
        if others and own in rates:
            ratios = [mine / max(theirs) for mine, *theirs in zip(rates[own], *others, strict=True)]
            cells.append(f"{own}: {statistics.median(ratios):.2f} {unit} ({min(ratios):.2f}-{max(ratios):.2f})")
    return "; ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contestant takes (default: 5)")
    parser.add_argument("--only", default="", help="jobs whose description contains this")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        contestant, job = json.loads(arguments.train)
        train_whole(contestant, Job(**job))
        return
    if arguments.measure:
        contestant, job = json.loads(arguments.measure)
        print(measure(contestant, Job(**job)))
        return
    for name, job in JOBS.items():
        if arguments.only.lower() in name.lower():
            print(f"- {name}: {compare(job, arguments.rounds)}", flush=True)


if __name__ == "__main__":
    main()
