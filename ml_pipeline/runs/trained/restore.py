"""From a checkpoint back to the settings, the policy and the environment of its run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import gymnasium
from gymnasium import spaces

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.spaces import space_from_data
from ml_pipeline.runs.checkpoint import load_checkpoint, reading
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.train_config import TrainConfig, settings_in, train_config
from ml_pipeline.runs.trained.deployed import CURRENT, resolved
from ml_pipeline.trading.evaluation.looks import LOOKED_AT, Look, record_look
from ml_pipeline.trading.task import TradingTask

if TYPE_CHECKING:
    from ml_pipeline.runs.sb3.policy import SB3Policy


def find_policy(path: str | Path) -> Path:
    """The checkpoint at a path: the file itself, or best.pt of a run folder, or latest.pt if there is no best.pt.

    `models/NAME/current` is resolved once, so that other files read with the checkpoint have the same version.
    Raises UserError if a folder has neither, if nothing is deployed, and if the deployed version was deleted.
    """
    path = resolved(Path(path).expanduser())
    if path.name == CURRENT and not os.path.lexists(path):
        raise UserError(
            f"There is no {path}: nothing is deployed there. Deploy the winner of a study with `ml-pipeline promote "
            "STUDY`, or name a run, such as checkpoints/RUN."
        )
    if not path.is_dir():
        return path
    for name in (BEST_CHECKPOINT, LATEST_CHECKPOINT):
        if (path / name).is_file():
            return path / name
    raise UserError(f"{path} has no {BEST_CHECKPOINT} and no {LATEST_CHECKPOINT}; name a run folder or a checkpoint.")


def load_run(checkpoint: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings of a checkpoint's run, and the checkpoint's whole content.

    Raises UserError if it is unusable.
    """
    saved = load_checkpoint(checkpoint)
    with reading(checkpoint):
        missing = next((name for name in ("config", "task", "trainer") if name not in saved), None)
        if missing is not None:
            raise KeyError(missing)
        return train_config(settings_in(saved, checkpoint)), saved


class HasSpaces(Protocol):
    """An environment or a substitute."""

    @property
    def observation_space(self) -> spaces.Space[Any]: ...
    @property
    def action_space(self) -> spaces.Space[Any]: ...


def restore_policy(
    config: TrainConfig, env: HasSpaces, saved: dict[str, Any], checkpoint: Path
) -> "Policy | SB3Policy":
    """The policy of a loaded checkpoint, to act in `env`. Raises UserError if it was made for other spaces."""
    both = env.observation_space, env.action_space
    with reading(checkpoint):
        state = saved["trainer"]["policy"]
    policy: Policy | SB3Policy
    if config.run.algorithm == OWN:
        policy = Policy(*both, config.ppo, seed=config.run.seed, device="cpu")
    else:
        policy = _policy_of_sb3(config, env, state, checkpoint)
    with reading(checkpoint):
        policy.load_state_dict(state)
    return policy


def _policy_of_sb3(config: TrainConfig, env: HasSpaces, state: dict[str, Any], checkpoint: Path) -> "SB3Policy":
    from ml_pipeline.runs.sb3.policy import SB3Policy, untrained_model  # needs Stable-Baselines3, an extra

    with reading(checkpoint):
        saved = (space_from_data(state["spaces"][name]) for name in ("observation", "action"))
        observation_space, action_space = saved
    model = untrained_model(config.run, config.ppo, observation_space, action_space, device="cpu")
    policy = SB3Policy(model, config.run, observation_space, action_space)
    policy.check_spaces(env.observation_space, env.action_space)
    return policy


RenderMode = Literal["rgb_array", "human"]


def make_saved_env(
    config: TrainConfig, task_state: Mapping[str, Any], *, split: str, render_mode: RenderMode | None = None
) -> gymnasium.Env:
    """The environment that a checkpoint's policy was trained in; for a market, one pass through `split`.

    task_state: the task's state in the checkpoint. Raises UserError if environment, market or render mode are
    unusable.
    """
    run = config.run
    if run.env_id is not None:
        return GymTask.of(run).evaluation_env(render_mode=render_mode)
    if render_mode == "human":
        raise UserError("A market cannot be shown in a window; record it instead, such as with --video run.mp4.")
    task = TradingTask.from_state(task_state, config.trading, run.seed)
    if split in LOOKED_AT:
        record_look(Look("enjoy"), task.fingerprints)
    return task.evaluation_env(split, render_mode=render_mode)
