"""The kinds of training whose machine code can be compiled ahead, each with the calls that a run itself makes.

These calls make a policy or step an environment, so no list of compiled functions can fall out of date.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.preprocessing.normalization import RewardScaler
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.settings import TradingConfig

DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)
_OBSERVATIONS = spaces.Box(-1.0, 1.0, (4,), np.float32)
_MEMORY = PPOConfig(memory="lstm")  # a GRU's code is the same


def _acting(config: PPOConfig, actions: spaces.Space) -> None:
    from ml_pipeline.models.rl.policies.policy import Policy  # imports torch, which trading does not need

    Policy(_OBSERVATIONS, actions, config, seed=0).compile()
    RewardScaler(1, gamma=config.gamma).compile()


def _learning(config: PPOConfig, actions: spaces.Space) -> None:
    from ml_pipeline.models.rl.policies.policy import Policy
    from ml_pipeline.models.rl.update.ppo_update import fastest_steps

    fastest_steps(Policy(_OBSERVATIONS, actions, config, seed=0), config, np.random.default_rng(0))


def _trading(trading: TradingConfig) -> None:
    (make_env,) = make_task(TrainConfig(trading=trading)).train_env_fns(1)
    make_env()


def _batched() -> None:
    envs = make_task(TrainConfig()).batched_train_env(2)
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
    envs.close()


KINDS: Mapping[str, Mapping[str, Callable[[], None]]] = {
    "perceptron": {
        "learning": partial(_learning, PPOConfig(), DISCRETE),
        "acting": partial(_acting, PPOConfig(), DISCRETE),
    },
    "trading": {"stepping": partial(_trading, TradingConfig())},
    "memory": {"learning": partial(_learning, _MEMORY, DISCRETE), "acting": partial(_acting, _MEMORY, DISCRETE)},
    "perceptron-box": {"learning": partial(_learning, PPOConfig(), BOX), "acting": partial(_acting, PPOConfig(), BOX)},
    "memory-box": {"learning": partial(_learning, _MEMORY, BOX)},
    "trading-stops": {"stepping": partial(_trading, TradingConfig(stop_loss=0.05))},
    "trading-batched": {"stepping": _batched},
}
"""The parts of each kind, which may be compiled in parallel. Names in -box are for continuous actions."""
