"""A policy trained on a trading task in one call, without a run folder: for checks that train several."""

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.networks.policy import Policy
from ml_pipeline.trading.batched_env import BatchedTradingEnv
from ml_pipeline.train_config import TrainConfig
from ml_pipeline.training import make_policy


def fit(envs: BatchedTradingEnv, ppo: PPOConfig, *, total_timesteps: int, seed: int) -> Policy:
    """A policy after about so many steps of PPO in `envs`, which are left open."""
    run = RunConfig(n_envs=envs.num_envs, num_episodes=None, total_timesteps=total_timesteps, seed=seed)
    config = TrainConfig(run=run, ppo=ppo)
    policy = make_policy(config, envs.single_observation_space, envs.single_action_space, device="cpu")
    PPOTrainer(envs, policy, ppo, total_iterations=config.n_iterations, seed=seed).train()
    return policy
