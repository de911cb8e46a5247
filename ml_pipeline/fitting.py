"""A policy trained on a trading task in one call, without a run folder: for checks that train several."""

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.networks.policy import Policy
from ml_pipeline.trading.batched_env import BatchedTradingEnv


def fit(envs: BatchedTradingEnv, ppo: PPOConfig, *, total_timesteps: int, seed: int) -> Policy:
    """A policy after about so many steps of PPO in `envs`, which are left open."""
    return PPOTrainer(envs, ppo, total_timesteps=total_timesteps, seed=seed).train()
