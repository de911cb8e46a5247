"""Folders and settings of the runs of several seeds."""

from dataclasses import replace

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.experiments import seeds
from ml_pipeline.experiments.seeds import name_seed_runs, seed_configs
from ml_pipeline.runs.train_config import TrainConfig


def test_each_seed_has_a_folder_beside_the_others_and_else_the_same_settings(tmp_path):
    config = TrainConfig()
    config = replace(config, run=replace(config.run, n_envs=3, checkpoint_dir=tmp_path / "base"))
    configs = seed_configs(config, [7, 0], name_seed_runs(config, "task"))
    for each, seed in zip(configs, (7, 0), strict=True):
        run = replace(config.run, seed=seed, checkpoint_dir=tmp_path / f"base-seed{seed}")
        assert each == replace(config, run=run)
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_the_runs_are_named_after_the_task_and_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(seeds, "runs_folder", lambda: tmp_path)
    base = name_seed_runs(TrainConfig(), "CartPole-v1")
    assert base.parent == tmp_path
    assert base.name.startswith("CartPole-v1-2")


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_trained(tmp_path):
    taken = tmp_path / "base-seed2"
    taken.mkdir()
    seed_configs(TrainConfig(), [1, 2], tmp_path / "base")  # an empty folder is none
    (taken / "latest.pt").write_text("")
    with pytest.raises(UserError, match=r"base-seed2 already holds a run; leave its seed out, or name other folders"):
        seed_configs(TrainConfig(), [1, 2], tmp_path / "base")
