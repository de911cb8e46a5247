"""Trainings as a service. Importing it imports nothing else: a short name loads when it is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_pipeline.service.agent_training_service import AgentTrainingService
    from ml_pipeline.service.env_builder import build_vec_env, get_optimal_n_envs
    from ml_pipeline.service.env_pool import EnvPool
    from ml_pipeline.service.trainer_agent import TrainerAgent
    from ml_pipeline.service.vectorized_env_config import VectorizedEnvConfig

__all__ = [
    "AgentTrainingService",
    "EnvPool",
    "TrainerAgent",
    "VectorizedEnvConfig",
    "build_vec_env",
    "get_optimal_n_envs",
]

_MODULES = {
    "AgentTrainingService": "ml_pipeline.service.agent_training_service",
    "EnvPool": "ml_pipeline.service.env_pool",
    "TrainerAgent": "ml_pipeline.service.trainer_agent",
    "VectorizedEnvConfig": "ml_pipeline.service.vectorized_env_config",
    "build_vec_env": "ml_pipeline.service.env_builder",
    "get_optimal_n_envs": "ml_pipeline.service.env_builder",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
