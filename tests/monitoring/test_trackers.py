"""A sink in a thread gets everything in order, and whatever it does, the thread that trains goes on."""

import json
import math
import struct
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.trackers import TensorBoardSink, ThreadedSink, require_tensorboard

END = RunEnd("finished", None, 3, 1.0, Path("run"))


class Kept:
    """Keeps what it is given; `raises` at the iteration of this number, and waits for `released` in each."""

    def __init__(self, *, raises=None, close_raises=False, released=None):
        self.got, self.threads = [], set()
        self._raises, self._close_raises, self._released = raises, close_raises, released
        self.reached = threading.Event()

    def write(self, metrics, episodes):
        self.threads.add(threading.current_thread())
        self.reached.set()
        if self._released is not None:
            self._released.wait()
        if self._raises == metrics["i"]:
            raise KeyError("no such curve")
        self.got.append((metrics["i"], list(episodes)))

    def ended(self, end):
        self.got.append(end)

    def close(self):
        self.got.append("closed")
        if self._close_raises:
            raise OSError("disk")


class WithoutEnd:
    def __init__(self):
        self.got = []

    def write(self, metrics, episodes):
        self.got.append(metrics["i"])

    def close(self):
        self.got.append("closed")


def threaded(sink, said, **options):
    return ThreadedSink("mine", lambda: sink, say=said.append, **options)


def test_everything_is_written_in_order_by_another_thread_before_close_returns():
    kept, said = Kept(), []
    sink = threaded(kept, said)
    for i in range(100):
        sink.write({"i": i}, [i])
    sink.ended(END)
    sink.close()
    sink.close()
    assert kept.got == [*((i, [i]) for i in range(100)), END, "closed"]
    assert threading.current_thread() not in kept.threads
    assert said == []
    sink.write({"i": 100}, [])
    assert len(kept.got) == 102


def test_a_sink_needs_no_method_ended():
    plain, said = WithoutEnd(), []
    sink = threaded(plain, said)
    sink.write({"i": 1}, [])
    sink.ended(END)
    sink.close()
    assert (plain.got, said) == ([1, "closed"], [])


def test_a_sink_that_raises_is_told_once_with_its_line_and_closed():
    kept, said = Kept(raises=1), []
    sink = threaded(kept, said)
    for i in range(3):
        sink.write({"i": i}, [])
    sink._thread.join(60)  # which a failure ends
    for i in range(3, 3000):
        sink.write({"i": i}, [])
    sink.ended(END)
    sink.close()
    assert kept.got == [(0, []), "closed"]
    failures = [sentence for sentence in said if "switched off" in sentence]
    assert len(failures) == 1
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise KeyError" in text)
    assert failures[0].startswith("The sink mine is switched off after an error: line ")
    assert f"line {line} of " in failures[0]
    assert "raised KeyError: 'no such curve'. Training continues." in failures[0]


def test_a_sink_that_hangs_misses_iterations_and_is_left_at_the_limit():
    released = threading.Event()
    kept, said = Kept(released=released), []
    sink = threaded(kept, said, most_waiting=5, close_timeout_s=0.05)
    try:
        sink.write({"i": 0}, [])
        assert kept.reached.wait(30)
        for i in range(1, 20):
            sink.write({"i": i}, [])
        sink.ended(END)
        sink.close()
        assert [sentence.partition(":")[0] for sentence in said] == [
            "The sink mine is too slow",
            "The sink mine did not finish within 0.05 s of the run's end; its last figures may be missing.",
        ]
        assert "5 iterations wait for it" in said[0]
    finally:
        released.set()
        sink._waiting.put(None)
        sink._thread.join()
    assert [i for i, _ in kept.got[:6]] == [0, 1, 2, 3, 4, 5]


def test_a_sink_that_cannot_be_opened_or_closed_is_told():
    said = []

    def fails():
        raise UserError("There is no such project.")

    sink = ThreadedSink("mine", fails, say=said.append)
    sink.write({"i": 0}, [])
    sink.close()
    assert said == ["The sink mine is switched off after an error: There is no such project. Training continues."]
    said.clear()
    sink = threaded(Kept(close_raises=True), said)
    sink.write({"i": 0}, [])
    sink.close()
    assert len(said) == 1
    assert "raised OSError: disk." in said[0]


@pytest.mark.parametrize(("opens_unwritten", "got"), [(False, []), (True, ["closed"])])
def test_a_sink_that_gets_nothing_is_opened_only_if_asked_for(opens_unwritten, got):
    kept, said = Kept(), []
    sink = threaded(kept, said, opens_unwritten=opens_unwritten)
    sink.ended(END)
    sink.close()
    assert (kept.got, said) == (got, [])


def test_a_sink_that_calls_exit_ends_neither_silently_nor_the_training():
    class Exits(WithoutEnd):
        def write(self, metrics, episodes):
            raise SystemExit("no licence")

    said = []
    sink = threaded(Exits(), said)
    sink.write({"i": 1}, [])
    sink.close()
    (sentence,) = said
    assert "SystemExit: no licence. Training continues." in sentence


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
