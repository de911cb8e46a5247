"""PPO with parallel environments: training, vector environments, trained policies, and their errors."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.config.errors import UserError as UserError
    from ml_pipeline.config.ppo import PPOConfig as PPOConfig
    from ml_pipeline.config.run import RunConfig as RunConfig
    from ml_pipeline.integrations.gym_vector import make_parallel_env as make_parallel_env
    from ml_pipeline.integrations.sb3 import SB3ParallelEnv as SB3ParallelEnv
    from ml_pipeline.models.rl.algorithms.evaluation import evaluate as evaluate
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer as PPOTrainer
    from ml_pipeline.models.rl.core.env_check import check_env as check_env
    from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError as VectorEnvError
    from ml_pipeline.models.rl.core.stepping.errors import WorkerFailedError as WorkerFailedError
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv as ParallelEnv
    from ml_pipeline.models.rl.core.vec_env import SerialEnv as SerialEnv
    from ml_pipeline.models.rl.distributed.rank_group import RankGroup as RankGroup
    from ml_pipeline.models.rl.policies.policy import Policy as Policy
    from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation as ActionMaskInObservation
    from ml_pipeline.models.rl.transitions import TrainingFailed as TrainingFailed
    from ml_pipeline.runs.run import Run as Run
    from ml_pipeline.runs.stop import StopRequest as StopRequest
    from ml_pipeline.runs.train_config import TrainConfig as TrainConfig
    from ml_pipeline.runs.train_config import train_config as train_config
    from ml_pipeline.runs.trained.load_policy import load_policy as load_policy
    from ml_pipeline.trading.gym_ids import FastTrainingEnv as FastTrainingEnv
    from ml_pipeline.trading.gym_ids import StatefulTradingEnv as StatefulTradingEnv
    from ml_pipeline.trading.gym_ids import TradingEnv as TradingEnv

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_names(__name__, __file__)
