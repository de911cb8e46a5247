"""PPO for slow Python environments. Importing it imports nothing else: a short name loads when it is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.evaluation import evaluate
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
    from ml_pipeline.runs.trained.load_policy import load_policy
    from ml_pipeline.trading.trading_env import FastTrainingEnv, StatefulTradingEnv, TradingEnv

__all__ = [
    "FastTrainingEnv",
    "PPOConfig",
    "PPOTrainer",
    "ParallelEnv",
    "SerialEnv",
    "StatefulTradingEnv",
    "TradingEnv",
    "evaluate",
    "load_policy",
]
__version__ = "0.1.0"

_MODULES = {
    "FastTrainingEnv": "ml_pipeline.trading.trading_env",
    "PPOConfig": "ml_pipeline.config.ppo",
    "PPOTrainer": "ml_pipeline.models.rl.algorithms.ppo_trainer",
    "ParallelEnv": "ml_pipeline.models.rl.core.vec_env",
    "SerialEnv": "ml_pipeline.models.rl.core.vec_env",
    "StatefulTradingEnv": "ml_pipeline.trading.trading_env",
    "TradingEnv": "ml_pipeline.trading.trading_env",
    "evaluate": "ml_pipeline.models.rl.algorithms.evaluation",
    "load_policy": "ml_pipeline.runs.trained.load_policy",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
