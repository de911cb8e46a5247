"""Frames to a video file: MP4 by ffmpeg, which the extra video brings, or GIF by Pillow, which matplotlib brings."""

import contextlib
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

Frame = NDArray[np.uint8]

# Browsers slow a GIF down that is faster than this, and it has no compression between frames to speak of.
_GIF_FPS, _GIF_WIDTH = 25.0, 400


class VideoFile:
    """A video that grows by frames, within a `with` block: at its end the file is there, whole.

    If the block fails, there is no new file, and one that was there before stays.
    n_frames: how many frames it has so far.
    """

    def __init__(self, path: Path, *, fps: float) -> None:
        """fps: frames per second. Raises UserError if the suffix is neither .mp4 nor .gif, the extra is missing, or
        the folder cannot be made."""
        writers: dict[str, Callable[[Path, float], _Writer]] = {".mp4": _Mp4, ".gif": _Gif}
        if path.suffix.lower() not in writers:
            raise UserError(f"A video is an .mp4 or a .gif, but got {path.name}; name it {path.stem}.mp4.")
        self.path = path
        self.n_frames = 0
        self._shape: tuple[int, ...] | None = None
        self._unfinished = path.with_name(f".unfinished-{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failure(error) from error
        self._writer = writers[path.suffix.lower()](self._unfinished, fps)

    def append(self, frame: Any) -> None:
        """Add a frame: uint8 (height, width, 3), all of one size. Raises UserError if it is anything else, or the
        file cannot be written."""
        array = np.asarray(frame)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            what = type(frame).__name__ if frame is None else f"{array.dtype} {array.shape}"
            raise UserError(f"render() must give frames of uint8 (height, width, 3) for a video, but gave {what}.")
        if self._shape not in (None, array.shape):
            raise UserError(f"Frames of a video must be of one size, but after {self._shape} came {array.shape}.")
        self._shape = array.shape
        try:
            self._writer.append(np.ascontiguousarray(array))
        except OSError as error:
            raise self._failure(error) from error
        self.n_frames += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
            if self.n_frames and error is None:
                self._unfinished.replace(self.path)
        except OSError as failure:
            if error is None:
                raise self._failure(failure) from failure
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _failure(self, error: OSError) -> UserError:
        reason = error.strerror or " ".join(str(error).split())[-200:]  # what ffmpeg says last
        return UserError(f"The video {self.path} cannot be written: {reason}.")


class _Writer(Protocol):
    def append(self, frame: Frame) -> None: ...

    def close(self) -> None: ...


class _Mp4:
    """Pipes raw frames to ffmpeg, which ends with the file whole once the pipe is closed."""

    def __init__(self, path: Path, fps: float) -> None:
        try:
            import imageio_ffmpeg
        except ModuleNotFoundError as error:
            raise UserError(
                "An .mp4 needs imageio-ffmpeg, which is not installed; pip install 'ml-pipeline[video]', or record a "
                ".gif, which needs nothing more."
            ) from error
        self._ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
        self._path, self._fps = path, fps
        self._process: subprocess.Popen[bytes] | None = None
        self._said = TemporaryFile()  # noqa: SIM115  # closed by close()

    def append(self, frame: Frame) -> None:
        if self._process is None:
            self._process = self._start(*frame.shape[:2])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame.tobytes())
        except BrokenPipeError as error:
            raise self._failure() from error

    def close(self) -> None:
        try:
            if self._process is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.communicate()
                if self._process.returncode:
                    raise self._failure()
        finally:
            self._said.close()

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:g}", "-i", "-"]
        # The format that every player takes has an even number of pixels on each side.
        encoded = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-f", "mp4"]
        return subprocess.Popen(
            [self._ffmpeg, "-v", "error", "-y", *raw, *encoded, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C is for the player; ffmpeg ends with the frames that it got
        )

    def _failure(self) -> OSError:
        self._said.seek(0)
        return OSError(self._said.read().decode(errors="replace").strip() or "ffmpeg ended early")


class _Gif:
    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._every = math.ceil(fps / _GIF_FPS)
        self._frame_ms = 1000 * self._every / fps
        self._n_seen = 0
        self._images: list[Image.Image] = []

    def append(self, frame: Frame) -> None:
        from PIL import Image

        if self._n_seen % self._every == 0:
            image = Image.fromarray(frame)
            image.thumbnail((_GIF_WIDTH, image.height))
            self._images.append(image.quantize(dither=Image.Dither.NONE))  # a third of the memory
        self._n_seen += 1

    def close(self) -> None:
        if self._images:
            first, *others = self._images
            first.save(self._path, format="gif", save_all=True, append_images=others, duration=self._frame_ms, loop=0)
