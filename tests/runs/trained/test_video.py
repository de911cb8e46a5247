"""Video files, read back frame by frame."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageSequence

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained.video import VideoFile

COLORS = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]


def _frames(height=40, width=60):
    return [np.full((height, width, 3), color, np.uint8) for color in COLORS]


def _record(path, frames, fps=10.0):
    with VideoFile(path, fps=fps) as video:
        for frame in frames:
            video.append(frame)
    return video


def _read_mp4(path, height, width):
    """(frames, seconds), by ffmpeg itself."""
    import imageio_ffmpeg

    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    args = [ffmpeg, "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(args, check=True, capture_output=True, timeout=60).stdout
    _, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3), seconds


def test_a_gif_holds_every_frame_for_its_time(tmp_path):
    video = _record(tmp_path / "new" / "out.gif", _frames())
    assert video.n_frames == 4
    with Image.open(tmp_path / "new" / "out.gif") as gif:
        assert gif.size == (60, 40)
        assert [image.convert("RGB").getpixel((5, 5)) for image in ImageSequence.Iterator(gif)] == COLORS
        assert [image.info["duration"] for image in ImageSequence.Iterator(gif)] == [100] * 4


def test_a_fast_gif_leaves_frames_out_and_takes_as_long(tmp_path):
    # 50 frames/s: every second one, for 40 ms each.
    _record(tmp_path / "out.gif", _frames(300, 800), fps=50.0)
    with Image.open(tmp_path / "out.gif") as gif:
        assert gif.size == (400, 150)
        assert [image.info["duration"] for image in ImageSequence.Iterator(gif)] == [40, 40]
        assert [image.convert("RGB").getpixel((5, 5)) for image in ImageSequence.Iterator(gif)] == COLORS[::2]


@pytest.mark.parametrize(("height", "width"), [(40, 60), (37, 51)])
def test_an_mp4_holds_every_frame_at_its_size_or_the_next_even_one(height, width, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    _record(tmp_path / "out.mp4", _frames(height, width), fps=8.0)
    frames, seconds = _read_mp4(tmp_path / "out.mp4", height + height % 2, width + width % 2)
    assert seconds == 0.5
    for frame, color in zip(frames, COLORS, strict=True):
        assert np.abs(frame[5, 5].astype(int) - color).max() < 12  # what compression leaves
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_failure_leaves_no_file_and_keeps_the_one_before(suffix, tmp_path):
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / f"out{suffix}"
    path.write_text("before")
    with pytest.raises(UserError, match="but gave NoneType"):
        _record(path, [_frames()[0], None])
    assert path.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (None, "gave NoneType"),
        (np.zeros((40, 60, 3)), r"gave float64 \(40, 60, 3\)"),
        (np.zeros((40, 60), np.uint8), r"gave uint8 \(40, 60\)"),
        (np.zeros((41, 60, 3), np.uint8), r"one size, but after \(40, 60, 3\) came \(41, 60, 3\)"),
    ],
)
def test_what_is_no_frame_is_one_sentence(frame, what, tmp_path):
    with pytest.raises(UserError, match=what):
        _record(tmp_path / "out.gif", [_frames()[0], frame])


def test_a_place_or_a_kind_that_cannot_be_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"A video is an \.mp4 or a \.gif, but got out\.avi; name it out\.mp4\."):
        VideoFile(tmp_path / "out.avi", fps=10.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written: File exists"):
        VideoFile(tmp_path / "file" / "out.gif", fps=10.0)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"imageio-ffmpeg, which is not installed; pip install 'ml-pipeline\[video"):
        VideoFile(tmp_path / "out.mp4", fps=10.0)


@pytest.mark.parametrize("size", [10, 1000])  # seen when the pipe is closed, and already when it is written
def test_an_encoder_that_fails_is_one_sentence(size, tmp_path, monkeypatch):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\necho no such encoder >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(broken))
    with pytest.raises(UserError, match=r"out\.mp4 cannot be written: no such encoder\.$"):
        _record(tmp_path / "out.mp4", [np.zeros((size, size, 3), np.uint8)] * 3)
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]
