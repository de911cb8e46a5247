"""Event files as TensorBoard's own reader sees them."""

import json
import math
import struct
import sys
import zlib

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.tensorboard import TensorBoardSink, require_tensorboard

SETTINGS = {
    "seed": 3,
    "learning_rate": 3e-4,
    "vec_env": "serial",
    "hidden_sizes": [64, 64],
    "data": None,
    "atari": False,
}


def png(width, height):
    """A black picture, by the standard alone."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = zlib.compress((b"\0" + b"\0" * width) * height)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def row(step, **more):
    return {"time/global_step": step, "train/loss": 0.1 * step, **more}


def written(folder, rows, end=None):
    sink = TensorBoardSink(folder, SETTINGS)
    for each in rows:
        sink.write(each, [])
    if end is not None:
        sink.ended(end)
    sink.close()
    sink.close()


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def curve(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_each_figure_is_read_back_under_its_name_as_float32(tmp_path):
    rows = [row(step, **{"eval/score": math.pi * step, "odd": math.nan, "great": math.inf}) for step in (8, 16, 24)]
    rows[1]["none"] = None
    written(tmp_path / "events", rows)
    events = read(tmp_path / "events")
    assert sorted(events.Tags()["scalars"]) == ["eval/score", "time/global_step", "train/loss"]
    for name in events.Tags()["scalars"]:
        assert curve(events, name) == [(each["time/global_step"], float(np.float32(each[name]))) for each in rows]


def test_settings_are_hyperparameters_of_the_one_run_in_the_folder(tmp_path):
    end = RunEnd("finished", None, 8, 7.5, tmp_path)
    written(tmp_path / "events", [row(8)], end)
    assert [path.is_file() for path in (tmp_path / "events").iterdir()] == [True]
    events = read(tmp_path / "events")
    tags = events.PluginTagToContent("hparams")
    found = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG]).hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()}
    assert values == {
        "seed": 3, "learning_rate": 3e-4, "vec_env": "serial", "hidden_sizes": "[64, 64]", "atari": False,
    }  # fmt: skip
    assert metadata.SESSION_END_INFO_TAG in tags
    assert curve(events, "hparam/best_score") == [(8, 7.5)]


def test_a_resumed_run_goes_on_with_the_same_curves_without_overlap(tmp_path):
    written(tmp_path / "events", [row(8), row(16), row(24)])
    written(tmp_path / "events", [row(16, **{"train/loss": 5.0}), row(24), row(32)])
    events = read(tmp_path / "events")
    assert [step for step, _ in curve(events, "train/loss")] == [8, 16, 24, 32]
    assert curve(events, "train/loss")[1] == (16, 5.0)


def test_pictures_of_a_finished_report_are_shown(tmp_path):
    (tmp_path / "equity.png").write_bytes(png(30, 20))
    (tmp_path / "broken.png").write_bytes(b"")
    written(tmp_path / "events", [row(8)], RunEnd("finished", None, 8, None, tmp_path))
    events = read(tmp_path / "events")
    assert events.Tags()["images"] == ["report/equity"]
    (image,) = events.Images("report/equity")
    assert (image.step, image.width, image.height) == (8, 30, 20)
    assert image.encoded_image_string == (tmp_path / "equity.png").read_bytes()


def test_a_run_that_failed_shows_no_picture_of_an_earlier_report(tmp_path):
    (tmp_path / "equity.png").write_bytes(png(3, 2))
    written(tmp_path / "events", [row(8)], RunEnd("failed", "killed", 8, -math.inf, tmp_path))
    events = read(tmp_path / "events")
    assert events.Tags()["images"] == []
    assert "hparam/best_score" not in events.Tags()["scalars"]
    assert metadata.SESSION_END_INFO_TAG not in events.PluginTagToContent("hparams")


def test_nothing_is_written_without_an_iteration(tmp_path):
    written(tmp_path / "events", [], RunEnd("finished", None, 8, 1.0, tmp_path))
    assert not (tmp_path / "events").exists()


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    require_tensorboard()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "tensorboard").mkdir()  # logs of somebody, in the working directory
    monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n.partition(".")[0] != "tensorboard"})
    sys.path_importer_cache.clear()
    with pytest.raises(UserError, match=r'takes the extra "tensorboard": pip install -e "\.\[tensorboard\]"'):
        require_tensorboard()


def test_the_hyperparameters_can_be_read_while_the_run_goes_on(tmp_path):
    sink = TensorBoardSink(tmp_path / "events", json.loads(json.dumps(SETTINGS)))
    sink.write(row(8), [])
    sink._writer.flush()
    assert metadata.SESSION_START_INFO_TAG in read(tmp_path / "events").PluginTagToContent("hparams")
    sink.close()
