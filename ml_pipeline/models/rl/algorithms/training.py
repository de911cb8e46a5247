"""PPO as a library: from functions that make environments to a policy, in one call."""

from collections.abc import Sequence
from contextlib import closing
from typing import Literal

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import Hook, PPOTrainer
from ml_pipeline.models.rl.core.env_block import EnvFactory
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.networks.policy import Policy
from ml_pipeline.monitoring.sink import MetricsSink


def train_ppo(
    env_fns: Sequence[EnvFactory],
    config: PPOConfig | None = None,
    *,
    total_timesteps: int,
    num_workers: int | Literal["auto"] = "auto",
    seed: int = 0,
    device: str = "cpu",
    sink: MetricsSink | None = None,
    after_iteration: Hook | None = None,
) -> Policy:
    """Train a policy in the environments that these functions make, side by side, and return it, ready to act.

    config: every hyperparameter; None is the defaults. total_timesteps: over all environments, rounded up to whole
    iterations. sink: where metrics go. after_iteration: a hook for metrics of your own, or to stop early; such hooks
    are in `early_stopping`. For checkpoints, evaluation during training and resumption, use `PPOTrainer`.
    Raises UserError where settings or spaces do not fit.

    >>> import gymnasium
    >>> from ml_pipeline.models.rl.core.evaluation import evaluate
    >>> make = lambda: gymnasium.make("CartPole-v1")
    >>> policy = train_ppo([make] * 4, PPOConfig(n_steps=64), total_timesteps=1_000)
    >>> evaluate(make(), policy.act, n_episodes=3, seed=0).mean_return > 5
    True
    """
    if total_timesteps < 1:
        raise UserError(f"total_timesteps must be at least 1, but got {total_timesteps}.")
    config = config or PPOConfig()
    with closing(ParallelEnv(env_fns, num_workers=num_workers, copy=False)) as envs:
        policy = Policy.of_config(
            config, envs.single_observation_space, envs.single_action_space, seed=seed, device=device
        )
        total_iterations = -(-total_timesteps // (envs.num_envs * config.n_steps))
        trainer = PPOTrainer(envs, policy, config, total_iterations=total_iterations, seed=seed, sink=sink)
        trainer.train(after_iteration=after_iteration)
    return policy
