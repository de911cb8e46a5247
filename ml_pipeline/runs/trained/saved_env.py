"""The environment of a saved run: a single one, in which its policy can act."""

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.evaluation.looks import LOOKED_AT, Look, record_look
from ml_pipeline.trading.symbols_task import trading_task_from_state

RenderMode = Literal["rgb_array", "human"]


def make_saved_env(
    config: TrainConfig, task_state: Mapping[str, Any], *, split: str, render_mode: RenderMode | None = None
) -> gymnasium.Env:
    """The environment that a checkpoint's policy was trained in; of a market, one pass through `split`.

    task_state: what the checkpoint holds of its task. Raises UserError if environment, market or render mode cannot
    be used.
    """
    run = config.run
    if run.env_id is not None:
        return GymTask.of(run).evaluation_env(render_mode=render_mode)
    if render_mode == "human":
        raise UserError("A market has no window to be shown in; record it instead, such as by --video run.mp4.")
    task = trading_task_from_state(task_state, config.trading, run.seed)
    if split in LOOKED_AT:
        record_look(Look("enjoy"), task.fingerprints)
    return task.evaluation_env(split, render_mode=render_mode)
