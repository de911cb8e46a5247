"""What a worker tells its ranks arrives as it was."""

from pathlib import Path

from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.settings import flatten
from ml_pipeline.runs.train_config import TrainConfig, train_config
from ml_pipeline.tuning.trials.rank_order import RankOrder, order_in


def test_an_order_reaches_another_process_whole(tmp_path):
    config = train_config(
        {
            "env_id": "mine:Env-v0",
            "env_kwargs": {"size": [1, 2.5], "names": None},
            "n_envs": 4,
            "n_envs_schedule": {1000: 8},
            "n_processes": 2,
            "rank_timeout_s": 5.0,
            "hidden_sizes": (8, 4),
            "clip_range_vf": 0.1,
            "total_timesteps": 10_000,
            "stop_at_return": -1e-300,
            "checkpoint_dir": tmp_path / "a study" / "trial-0000",
            "sink": ("mine:Sink",),
        }
    )
    order = RankOrder(
        rank=1,
        size=2,
        port=4711,
        timeout_s=5.0,
        settings=flatten(config),
        checkpoint=str(tmp_path / "latest.pt"),
        sys_path=["", "ü"],
    )
    line = order.line()
    assert line.count(b"\n") == 1
    received = order_in(line)
    assert (received.rank, received.port, received.checkpoint) == (1, 4711, order.checkpoint)
    assert received.sys_path == order.sys_path
    assert train_config(convert_settings(received.settings, TrainConfig, source=Path("the order"))) == config
