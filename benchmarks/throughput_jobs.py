"""The jobs of `ppo_throughput.py`, with the settings of all contestants."""

from dataclasses import dataclass

WARM_UP = 2  # iterations
UNTIL_LONG = 40  # iterations of 2,048 transitions, until CartPole's episodes take some hundred steps


@dataclass(frozen=True)
class Job:
    """Settings that every contestant trains with; 64x64 tanh, separate networks.

    memory: units of an LSTM below each network, 0 for none. normalizes: observations and rewards, by running statistics
    (VecNormalize). squashes: ours keeps actions within their bounds by tanh; Stable-Baselines3's PPO, which does that
    with gSDE alone, clips. warm_up: iterations before those that count. total_timesteps: of a whole program.
    network: a user's own, below both networks, a name in `throughput_networks.py`.
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
    network: str | None = None


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
    "peers: CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "CartPole-v1", 8, 256, 256, 10, ("ours", "torch", "TorchRL", "rlox"), warm_up=UNTIL_LONG
    ),
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
    "networks: NatureCNN, 84x84x4 frames, 8 x 64, minibatch 128, 4 epochs": Job(
        "frames",
        8,
        64,
        128,
        4,
        ("ours", "Stable-Baselines3 CnnPolicy", "Stable-Baselines3 CnnPolicy, one thread"),
        network="NatureCNN",
    ),
    "networks: a Dict in two branches, CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "in parts", 8, 256, 256, 10, _IN_PROCESS, network="two branches", warm_up=UNTIL_LONG
    ),
    "networks: three layers with layer norm, CartPole-v1, 8 x 256, minibatch 256, 10 epochs": Job(
        "CartPole-v1", 8, 256, 256, 10, _IN_PROCESS, network="layer norms", warm_up=UNTIL_LONG
    ),
}
