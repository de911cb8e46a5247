"""Video files, read back frame by frame."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageSequence

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained import enjoy as video_module
from ml_pipeline.runs.trained.enjoy import VideoFile

COLORS = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]


def _frames(height=40, width=60):
    return [np.full((height, width, 3), color, np.uint8) for color in COLORS]


def _record(path, frames, fps=10.0):
    with VideoFile(path, fps=fps) as video:
        for frame in frames:
            video.append(frame)
    return video


def _read_mp4(path):
    """(frames, seconds)"""
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return frames, float(container.duration / av.time_base)


def test_a_gif_holds_every_frame_for_its_time(tmp_path):
    video = _record(tmp_path / "out.gif", _frames())
    assert video.n_frames == 4
    with Image.open(tmp_path / "out.gif") as gif:
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
    pytest.importorskip("av")
    _record(tmp_path / "out.mp4", _frames(height, width), fps=8.0)
    frames, seconds = _read_mp4(tmp_path / "out.mp4")
    assert seconds == 0.5
    for frame, color in zip(frames, COLORS, strict=True):
        assert frame.shape == (height + height % 2, width + width % 2, 3)
        assert np.abs(frame[5, 5].astype(int) - color).max() < 12  # what compression leaves
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_failure_leaves_no_file_and_keeps_the_one_before(suffix, tmp_path):
    if suffix == ".mp4":
        pytest.importorskip("av")
    path = tmp_path / f"out{suffix}"
    path.write_text("before")
    with pytest.raises(UserError, match="but returned NoneType"):
        _record(path, [_frames()[0], None])
    assert path.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (None, "returned NoneType"),
        (np.zeros((40, 60, 3)), r"returned float64 \(40, 60, 3\)"),
        (np.zeros((40, 60), np.uint8), r"returned uint8 \(40, 60\)"),
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
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        VideoFile(tmp_path / "file" / "out.gif", fps=10.0)
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        VideoFile(tmp_path / "none" / "out.gif", fps=10.0)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"needs PyAV, which is not installed; pip install .*\[video\]., or"):
        VideoFile(tmp_path / "out.mp4", fps=10.0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX alone limits the size of files")
def test_a_disk_that_is_full_is_one_sentence(tmp_path):
    pytest.importorskip("av")
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from ml_pipeline.config.errors import UserError\nfrom ml_pipeline.runs.trained.enjoy import VideoFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "noise = np.random.default_rng(0).integers(0, 256, (20, 100, 100, 3), np.uint8)\n"
        "try:\n    with VideoFile(Path(sys.argv[1]), fps=10.0) as video:\n"
        "        for frame in noise: video.append(frame)\n"
        "except UserError as error: print(error)\n"
    )
    path = tmp_path / "out.mp4"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"The video {path} cannot be written: File too large.\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_loses_no_frame(tmp_path, monkeypatch):
    """Ctrl-C while a frame is encoded: the frame is still whole, and the video ends with it."""
    av = pytest.importorskip("av")
    original = av.VideoFrame.from_ndarray

    def interrupted(array):
        if interrupted.after == 0:
            signal.raise_signal(signal.SIGINT)
        interrupted.after -= 1
        return original(array)

    interrupted.after = 2
    monkeypatch.setattr(video_module, "_frame_of", interrupted)
    with VideoFile(tmp_path / "out.mp4", fps=8.0) as video:
        for frame in _frames()[:2]:
            video.append(frame)
        with pytest.raises(KeyboardInterrupt):
            video.append(_frames()[2])
    assert len(_read_mp4(tmp_path / "out.mp4")[0]) == 3
