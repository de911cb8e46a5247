"""Starts a run from the policy in `init_from`: copies its weights and the scaling they were learned with.

Nothing else is copied: optimizer, schedules and counters start fresh. To continue a run, use `--resume`.
"""

import os
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.trainer import TrainedPolicy
from ml_pipeline.runs.checkpoint import load_checkpoint, reading
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.train_config import TrainConfig, settings_in, train_config
from ml_pipeline.trading.task import TradingTask


def initial_checkpoint(named: Path) -> Path:
    """The checkpoint of a run folder, a version of a deployed model, or a file; resolves links once.

    Raises UserError if there is none.
    """
    path = Path(os.path.realpath(named.expanduser()))
    if path.is_dir():
        path = next((path / name for name in (BEST_CHECKPOINT, LATEST_CHECKPOINT) if (path / name).is_file()), path)
    if not path.is_file():
        raise UserError(
            f"There is no policy to start from in {named}; pass a run folder or a checkpoint to --init-from."
        )
    return path


def load_initial_policy(policy: TrainedPolicy, config: TrainConfig) -> None:
    """Copy weights and statistics from the policy in `init_from` into a new run's policy, bit for bit.

    Raises UserError if it cannot be read, or has another algorithm, network or space.
    """
    assert config.run.init_from is not None
    checkpoint = initial_checkpoint(config.run.init_from)
    saved = load_checkpoint(checkpoint)
    with reading(checkpoint):
        state = saved["trainer"]["policy"]
        algorithm = train_config(settings_in(saved, checkpoint)).run.algorithm
    if algorithm != config.run.algorithm:
        raise UserError(
            f"{checkpoint} was trained with {algorithm}, but this run trains with {config.run.algorithm}; pass a "
            "policy of the same algorithm to --init-from."
        )
    with reading(checkpoint):
        policy.load_state_dict(state)


def trading_task_as_begun(config: TrainConfig) -> TradingTask:
    """The trading task of these settings, with features scaled as for the policy in `init_from`.

    A resumed run takes the scaling from its own checkpoint. Raises UserError if the policy's observations differ.
    """
    run = config.run
    assert run.init_from is not None
    own = None if run.checkpoint_dir is None else run.checkpoint_dir / LATEST_CHECKPOINT
    checkpoint = own if own is not None and own.is_file() else initial_checkpoint(run.init_from)
    saved = load_checkpoint(checkpoint)
    with reading(checkpoint):
        state = saved["task"]
    return TradingTask.scaled_as(state, config.trading, run.seed)
