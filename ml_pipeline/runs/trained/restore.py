"""From a checkpoint back to the settings and the policy of its run."""

from pathlib import Path
from typing import Any

import gymnasium

from ml_pipeline.config.settings import build
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.train_config import TrainConfig, settings_in


def load_run(checkpoint: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings of a checkpoint's run, and everything that the checkpoint holds.

    Raises UserError where it cannot be used.
    """
    saved = load_checkpoint(checkpoint)
    return build(TrainConfig, settings_in(saved, checkpoint)), saved


def restore_policy(config: TrainConfig, env: gymnasium.Env, saved: dict[str, Any]) -> Policy:
    """The policy of a checkpoint, to act in `env`. Raises UserError where it was made for other spaces."""
    policy = Policy(env.observation_space, env.action_space, config.ppo, seed=config.run.seed, device="cpu")
    policy.load_state_dict(saved["trainer"]["policy"])
    return policy
