"""From a checkpoint back to the settings and the policy of its run."""

from pathlib import Path
from typing import Any

import gymnasium

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import build
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import load_checkpoint, reading
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.train_config import TrainConfig, settings_in


def find_policy(path: str | Path) -> Path:
    """The checkpoint that a path names: the file itself, or best.pt of a run folder, or latest.pt without one.

    Raises UserError if a folder has neither.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    for name in (BEST_CHECKPOINT, LATEST_CHECKPOINT):
        if (path / name).is_file():
            return path / name
    raise UserError(f"{path} has no {BEST_CHECKPOINT} and no {LATEST_CHECKPOINT}; name a run folder or a checkpoint.")


def load_run(checkpoint: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings of a checkpoint's run, and everything that the checkpoint holds.

    Raises UserError where it cannot be used.
    """
    saved = load_checkpoint(checkpoint)
    with reading(checkpoint):
        missing = next((name for name in ("config", "task", "trainer") if name not in saved), None)
        if missing is not None:
            raise KeyError(missing)
        return build(TrainConfig, settings_in(saved, checkpoint)), saved


def restore_policy(config: TrainConfig, env: gymnasium.Env, saved: dict[str, Any], checkpoint: Path) -> Policy:
    """The policy of a loaded checkpoint, to act in `env`. Raises UserError where it was made for other spaces."""
    policy = Policy(env.observation_space, env.action_space, config.ppo, seed=config.run.seed, device="cpu")
    with reading(checkpoint):
        policy.load_state_dict(saved["trainer"]["policy"])
    return policy
