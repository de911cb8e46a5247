"""Checkpoints on disk: a power cut leaves the old one or the new one, and reading one runs no code of its own."""

from pathlib import Path
from typing import Any

import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.whole_file import written_whole

FORMAT = "ml-pipeline checkpoint"
VERSION = 2
"""Raised whenever an older program's checkpoints no longer mean the same here."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to `path`, whole or not at all; what was there stays until the new one is safe.

    Raises UserError where the folder cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        kept = " The checkpoint before it is untouched." if path.is_file() else ""
        raise UserError(f"Cannot write the checkpoint {path}: {_reason(error)}.{kept}") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given. Raises UserError where there is none, or it is cut short or something else."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a checkpoint in it, such as {path / 'latest.pt'}.")
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises on a file that is none of its own depends on its bytes
        raise UserError(
            f"{path} cannot be read as a checkpoint: it is cut short, damaged or something else."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of this program.")
    if state["version"] != VERSION:
        raise UserError(
            f"{path} has checkpoint version {state['version']}, but this program reads {VERSION}; use the release that "
            "wrote it, or train anew."
        )
    return state


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "the disk is full, or took only a part of it"  # all that torch tells is a position in its archive
