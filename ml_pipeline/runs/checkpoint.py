"""Checkpoints on disk: a power cut leaves the old one or the new one, and reading one runs no code of its own."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable, VectorEnvError
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runtime.regular_file import open_regular, unpacked_bytes
from ml_pipeline.runtime.whole_file import written_whole

FORMAT = "ml-pipeline checkpoint"
VERSION = 3
"""Raised whenever an older program's checkpoints no longer mean the same here."""
PICKLES_INSIDE = 2
"""This version held the states of environments as pickles, which are no longer opened; all else is the same."""

_LONGEST_REASON = 300


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to `path`, whole or not at all; what was there stays until the new one is safe.

    Raises UserError where the folder cannot be written or the disk is full.
    """
    with writing(path), written_whole(path) as file:
        torch.save({"format": FORMAT, "version": VERSION, **state}, file)


@contextmanager
def writing(checkpoint: Path) -> Iterator[None]:
    """Within the block, which writes a checkpoint, what a disk or a folder refuses is one sentence, a UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        kept = " The checkpoint before it is untouched." if checkpoint.is_file() else ""
        raise UserError(f"Cannot write the checkpoint {checkpoint}: {_reason(error)}.{kept}") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given. Raises UserError where there is none, or it is cut short or something else."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a checkpoint in it, such as {path / LATEST_CHECKPOINT}.")
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    try:
        with open_regular(path) as file:
            is_larger = unpacked_bytes(file) > os.fstat(file.fileno()).st_size  # torch does not compress
        if is_larger:
            raise UserError(f"{path} cannot be read as a checkpoint: it unpacks to more than it holds.")
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # torch does not look at the checksums
                raise ValueError(damaged)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {_reason(error)}.") from error
    except Exception as error:  # what torch raises on a file that is none of its own depends on its bytes
        raise UserError(
            f"{path} cannot be read as a checkpoint: it is cut short, damaged or something else."
        ) from error
    known = isinstance(state, dict) and state.get("format") == FORMAT and isinstance(state.get("version"), int)
    if not known:
        raise UserError(f"{path} is not a checkpoint of this program.")
    version = state["version"]
    if version not in (PICKLES_INSIDE, VERSION):
        raise UserError(
            f"{path} has checkpoint version {version}, but this program reads {VERSION}; use the release that wrote "
            "it, or train anew."
        )
    return state


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Within the block, which uses what a checkpoint holds, an error about what it lacks is one sentence, a UserError.

    A shape of weights that does not fit, and a value of another type, too.
    """
    try:
        yield
    except StateNotAvailable as error:
        raise _unusable(checkpoint, f"the state of environment {error.index}: {error.reason}") from error
    except (UserError, VectorEnvError) as error:
        if "\n" not in str(error) or not isinstance(error, UserError):
            raise
        raise _unusable(checkpoint, str(error)) from error  # it quotes a value that is no setting
    # torch raises RuntimeError for other shapes; values of other types may break anything that uses them.
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        missing = isinstance(error, KeyError)
        raise _unusable(checkpoint, f"{error} is missing" if missing else str(error) or type(error).__name__) from error


def _unusable(checkpoint: Path, reason: str) -> UserError:
    reason = shorten(reason, _LONGEST_REASON, placeholder=" ...").rstrip(".")
    return UserError(f"{checkpoint} is damaged, or another version wrote it: {reason}.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "the disk is full, or took only a part of it"  # all that torch tells is a position in its archive
