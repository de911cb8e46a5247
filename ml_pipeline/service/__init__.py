"""Run several trainings: `TrainerAgent`, the training service, and a shared limit on environments."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.runs.env_pool import EnvPool as EnvPool
    from ml_pipeline.service.agent_config import VectorizedEnvConfig as VectorizedEnvConfig
    from ml_pipeline.service.agent_training_service import AgentTrainingService as AgentTrainingService
    from ml_pipeline.service.env_builder import build_vec_env as build_vec_env
    from ml_pipeline.service.env_builder import get_optimal_n_envs as get_optimal_n_envs
    from ml_pipeline.service.resources import ServiceLimits as ServiceLimits
    from ml_pipeline.service.trainer_agent import TrainerAgent as TrainerAgent

__getattr__, __dir__ = lazy_names(__name__, __file__)
