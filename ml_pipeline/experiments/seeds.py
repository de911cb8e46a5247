"""Runs with several seeds: the same settings, one folder per seed."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, runs_folder
from ml_pipeline.runs.train_config import TrainConfig


def name_seed_runs(config: TrainConfig, task_name: str) -> Path:
    """The path prefix of the folders of all seeds: the run folder in the settings, or a new name."""
    return config.run.checkpoint_dir or runs_folder() / f"{task_name}-{time.strftime('%Y%m%d-%H%M%S')}"


def seed_configs(config: TrainConfig, seeds: Sequence[int], base: Path) -> list[TrainConfig]:
    """The settings for each seed, with run folder BASE-seedN.

    Raises UserError if a folder already holds a run.
    """
    folders = [base.with_name(f"{base.name}-seed{seed}") for seed in seeds]
    for folder in folders:
        if (folder / LATEST_CHECKPOINT).exists():
            raise UserError(
                f"{folder} already holds a run; leave its seed out, or name other folders with --checkpoint-dir."
            )
    return [
        replace(config, run=replace(config.run, seed=seed, checkpoint_dir=folder))
        for seed, folder in zip(seeds, folders, strict=True)
    ]
